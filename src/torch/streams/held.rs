//! Whether the calling thread has a device's capture lock (rule 9).
//!
//! A missing guard shows only if another thread captures a graph at that moment. So builds with
//! debug assertions check for it in every call that submits work to a CUDA device, whether any
//! thread captures or not.

use std::marker::PhantomData;

use super::ids::MemorySpace;

/// Marks that this thread has the device's lock, shared or exclusive.
#[derive(Debug)]
pub(super) struct Held {
    #[cfg(debug_assertions)]
    device: usize,
    /// Keeps the mark on its thread.
    thread: PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
mod here {
    use std::cell::RefCell;

    thread_local! {
        /// A device for each lock of it that the thread has.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn has(device: usize) -> bool {
        HELD.with_borrow(|held| held.contains(&device))
    }

    impl super::Held {
        pub(in crate::streams) fn new(device: usize) -> Self {
            HELD.with_borrow_mut(|held| held.push(device));
            let thread = std::marker::PhantomData;
            Self { device, thread }
        }
    }

    impl Drop for super::Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                let place = held.iter().rposition(|device| *device == self.device);
                place.map(|place| held.swap_remove(place))
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod here {
    pub(super) const fn has(_: usize) -> bool {
        true
    }

    impl super::Held {
        pub(in crate::streams) const fn new(_: usize) -> Self {
            let thread = std::marker::PhantomData;
            Self { thread }
        }
    }
}

/// # Panics
/// With debug assertions, if another thread could capture a graph on the place while the calling
/// thread submits work to it.
pub(super) fn submits(place: MemorySpace) {
    if let MemorySpace::Accelerator(device) = place {
        debug_assert!(
            here::has(device),
            "work for cuda:{device} from a thread that does not share the device: another one \
             could capture a graph meanwhile"
        );
    }
}
