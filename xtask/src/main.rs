//! Checks, tests and generated files of the tree.
fn main() {}
