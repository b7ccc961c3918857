// Nothing: the headers that the tests of whole tensors share are compiled along with it, once.
