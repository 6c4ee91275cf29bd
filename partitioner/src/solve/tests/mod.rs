//! Tests of the search against every possible cut.

mod by_hand;
mod case;
mod exact;
mod leanest;
mod small;
