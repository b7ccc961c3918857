# What docs/Doxyfile reads headers through: a comment of `//` becomes one that doxygen reads, in which nothing is markup.
s|^( *)//( .*)?$|\1///\2|
/^ *\/\/\//s/[#%@<&]/\\&/g
# A specialization of a template of namespace std, which doxygen has not seen.
s/std::numeric_limits<microscale/numeric_limits<microscale/
