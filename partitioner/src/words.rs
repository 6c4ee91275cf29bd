//! Words that go with numbers.

/// `1 chunk`, `2 chunks`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = match (number, noun.ends_with("ch") || noun.ends_with("ss")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1, "stage"), "1 stage");
        assert_eq!(count(0, "stage"), "0 stages");
        assert_eq!(count(1, "micro-batch"), "1 micro-batch");
        assert_eq!(count(2, "micro-batch"), "2 micro-batches");
    }
}
