#include "recipe_layer.hpp"

namespace pretrain {

template std::unique_ptr<linear_layer> make_layer<rows::ue5m3>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::ue5m3_b32>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::ue5m3_te>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::ue5m3_b32_te>(const linear_place&, thread_pool&);

}  // namespace pretrain
