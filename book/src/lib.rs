//! The book's pages as doc tests: a code block that does not compile and run fails `cargo test`.
