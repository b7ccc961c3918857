#include "recipe_layer.hpp"

namespace pretrain {

template std::unique_ptr<linear_layer> make_layer<rows::nvfp4>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::nvfp4_everywhere>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::nvfp4_no_rht>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::nvfp4_everywhere_no_rht>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::fp4_all_the_way>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::quartet2>(const linear_place&, thread_pool&);
template std::unique_ptr<linear_layer> make_layer<rows::ngpt>(const linear_place&, thread_pool&);

}  // namespace pretrain
