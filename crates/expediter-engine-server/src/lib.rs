//! A simulated replica one can curl.
