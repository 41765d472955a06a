//! Sizes and shares as people write them.
