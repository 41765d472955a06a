//! seccomp filter (second layer).
