//! What a page calls: it writes a question where `gpipe_question` says, calls `gpipe_answer`, and
//! reads the answer there, `gpipe_answer_length` bytes of UTF-8. All of it on one thread.
// A symbol that has its own name could hide another one: these begin with `gpipe_`.
#![allow(unsafe_code)]

use std::cell::RefCell;

thread_local! {
    static QUESTION: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes room for a question of so many bytes and says where.
#[unsafe(no_mangle)]
extern "C" fn gpipe_question(length: usize) -> *mut u8 {
    QUESTION.with_borrow_mut(|question| {
        question.clear();
        question.resize(length, 0);
        question.as_mut_ptr()
    })
}

/// Answers the question and says where the answer is, until the next one.
#[unsafe(no_mangle)]
extern "C" fn gpipe_answer() -> *const u8 {
    let answer = QUESTION.with_borrow(|question| crate::answer(&String::from_utf8_lossy(question)));
    ANSWER.with_borrow_mut(|last| {
        *last = answer;
        last.as_ptr()
    })
}

/// How long the answer is.
#[unsafe(no_mangle)]
extern "C" fn gpipe_answer_length() -> usize {
    ANSWER.with_borrow(String::len)
}
