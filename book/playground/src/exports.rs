//! Functions for the page: it writes a question to the address that `gpipe_question` returns, calls
//! `gpipe_answer`, and reads `gpipe_answer_length` bytes of UTF-8 from the address returned. All on one
//! thread.
// Unmangled symbols could clash with others, so all names begin with `gpipe_`.
#![allow(unsafe_code)]

use std::cell::RefCell;

thread_local! {
    static QUESTION: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes room for a question of `length` bytes and returns its address.
#[unsafe(no_mangle)]
extern "C" fn gpipe_question(length: usize) -> *mut u8 {
    QUESTION.with_borrow_mut(|question| {
        question.clear();
        question.resize(length, 0);
        question.as_mut_ptr()
    })
}

/// Answers the question and returns the answer's address, valid until the next call.
#[unsafe(no_mangle)]
extern "C" fn gpipe_answer() -> *const u8 {
    let answer = QUESTION.with_borrow(|question| crate::answer(&String::from_utf8_lossy(question)));
    ANSWER.with_borrow_mut(|last| {
        *last = answer;
        last.as_ptr()
    })
}

/// Length of the answer in bytes.
#[unsafe(no_mangle)]
extern "C" fn gpipe_answer_length() -> usize {
    ANSWER.with_borrow(String::len)
}
