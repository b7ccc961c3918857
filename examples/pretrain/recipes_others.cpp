#include "recipe_layer.hpp"

namespace pretrain {

template std::unique_ptr<linear_layer> make_layer<rows::bf16>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::transposition_invariant>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::ufp4>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::fusion>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::fusion_h16>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::mxfp8>(const linear_place&, thread_pool&);

}  // namespace pretrain
