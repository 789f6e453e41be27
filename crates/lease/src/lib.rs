//! The kernel: who owns a key, until when and under which fencing token.
