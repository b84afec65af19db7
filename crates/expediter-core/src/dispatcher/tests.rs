//! Tests of the dispatcher as a whole.
