// A loop with constant arguments: f(0), ..., f(N - 1), so that arrays indexed by them live in registers. Not a header
// of its own: it is included into the namespace, and under the target options, of each instruction set that uses it,
// since neither compiler inlines code for one set into code for another.
template <class F, int... Index>
[[gnu::always_inline]] inline void each_of(std::integer_sequence<int, Index...>, F f) {
  (f(index_t{Index}), ...);
}
template <int Count, class F>
[[gnu::always_inline]] inline void each(F f) {
  each_of(indices<Count>{}, f);
}
