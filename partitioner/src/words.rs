//! Text helpers: nouns with numbers, formatted numbers, and suggestions for misspelt names.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::units::Micros;

/// Formats `1 chunk`, `2 chunks`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = match (number, noun.ends_with("ch") || noun.ends_with("ss")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{plural}")
}

/// Formats `the only row`, `all 2 rows`.
pub fn all(number: usize, noun: &str) -> String {
    match number {
        1 => format!("the only {noun}"),
        _ => format!("all {}", count(number, noun)),
    }
}

/// Quotes a word of a command for a shell (`bash`, `zsh`): a folder's name with blanks, quotes or `$( )`
/// gets quotes, and characters that would control a terminal are written as `\u001b`.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "_-./,:=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    if !word.chars().any(steers) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = "$'".to_owned();
    for c in word.chars() {
        // Writing to a string cannot fail.
        let _ = match c {
            c if steers(c) => write!(text, "\\u{:04x}", u32::from(c)),
            '\'' | '\\' => write!(text, "\\{c}"),
            c => write!(text, "{c}"),
        };
    }
    text + "'"
}

/// Whether a character would control a terminal: control characters, and those that change the direction
/// of writing.
pub fn steers(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || c.is_control()
}

/// Longest text that is compared with names: a longer one is no misspelt name.
const LONGEST: usize = 64;

/// Normalizes a name for comparison: without case and underlines.
fn plain(name: &str) -> String {
    let plain = |letter: char| if letter == '_' { '-' } else { letter };
    let letters = name.chars().take(LONGEST).map(plain);
    letters.flat_map(char::to_lowercase).collect()
}

/// Formats the first names, each in quotes, and the number of others: `` `x`, `y` and 3 more ``.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 12;
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    let first = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Returns the name with the fewest edits from `wanted`, without a limit: insertions, deletions,
/// replacements and swaps of neighbours. None if there is no name.
pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = plain(wanted);
    // Among equally near names, the one of more similar length: `gtp2` is `gpt2`, not `gpt`.
    names.into_iter().min_by_key(|name| {
        let edits = strsim::osa_distance(&wanted, &plain(name));
        (edits, name.len().abs_diff(wanted.len()))
    })
}

/// Returns the name that `wanted` misspells: at most one letter of three is wrong, or its letters are in
/// another order, or it is the beginning of the name, or a part of it between hyphens. None if no name
/// is similar, as a guess would mislead.
pub fn meant<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const SHORTEST_PART: usize = 2;
    let own = plain(wanted);
    let is_slip = |name: &str| {
        let name = plain(name);
        let length = own.chars().count().max(name.chars().count());
        3 * strsim::osa_distance(&own, &name) <= length || sorted(&own) == sorted(&name)
    };
    let is_part = |name: &str| {
        let name = plain(name);
        own.len() >= SHORTEST_PART
            && (name.starts_with(&own) || name.split('-').any(|part| part == own))
    };
    let names = names.into_iter();
    nearest(wanted, names.filter(|name| is_slip(name) || is_part(name)))
}

fn sorted(name: &str) -> Vec<char> {
    let mut letters: Vec<char> = name.chars().collect();
    letters.sort_unstable();
    letters
}

/// Most names of a folder that are compared; with more, a guess would take too long.
const MOST_NAMES: usize = 10_000;

/// Returns the file or folder meant by a path that does not exist, if one name in it is misspelt.
pub fn path_meant(path: &Path) -> Option<PathBuf> {
    let is_lost = |own: &&Path| !own.as_os_str().is_empty() && !own.exists();
    let missing = path.ancestors().take_while(is_lost).last()?;
    let rest = path.strip_prefix(missing).ok()?;
    let folder = missing.parent()?;
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let entries = std::fs::read_dir(here).ok()?.take(MOST_NAMES);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    let names = names.iter().map(String::as_str);
    let wanted = missing.file_name()?.to_str()?;
    // The ending is half of a short name, and common to many: it makes no name similar.
    let (stem, ending) = apart(wanted);
    let is_near = |name: &&str| {
        let own = apart(name);
        let is_slip = |wanted, own| meant(wanted, [own]).is_some();
        is_slip(stem, own.0) && (stem == own.0 || is_slip(ending, own.1))
    };
    let near = folder.join(nearest(wanted, names.filter(is_near))?);
    let whole = if rest.as_os_str().is_empty() {
        near
    } else {
        near.join(rest)
    };
    whole.exists().then_some(whole)
}

/// Splits a name from its ending.
fn apart(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or((name, ""))
}

/// Returns a hint for a path that does not exist: ``; did you mean `text.txt`?``, or nothing.
pub fn path_instead(path: &Path) -> String {
    path_meant(path).map_or_else(String::new, |near| {
        format!("; did you mean `{}`?", near.display())
    })
}

/// Returns the rest of a message about an unknown name, with `choices` as alternatives: ``: did you mean
/// `gpt`? There are gpt, mlp``, and without a similar name `; there are gpt, mlp`.
pub fn instead(near: Option<&str>, choices: &str) -> String {
    let Some(near) = near else {
        return format!("; {choices}");
    };
    let mut letters = choices.chars();
    let first = letters.next().map(char::to_uppercase);
    let first: String = first.into_iter().flatten().collect();
    format!(": did you mean `{near}`? {first}{}", letters.as_str())
}

/// Shortens a message that repeats content of a file: drops the middle of words of more than 300
/// letters, and of messages of more than 4,000.
pub fn brief(text: &str) -> Cow<'_, str> {
    const WORD: (usize, usize) = (200, 60);
    const WHOLE: (usize, usize) = (3_000, 500);
    let is_long = |own: &str| own.len() > WORD.0 + WORD.1 + 40 && own.chars().nth(300).is_some();
    let mut text = Cow::Borrowed(text);
    if text.split_whitespace().any(is_long) {
        let words = text.split_inclusive(char::is_whitespace);
        let words = words.map(|own| {
            if is_long(own.trim_end()) {
                without_middle(own, WORD)
            } else {
                own.to_owned()
            }
        });
        text = Cow::Owned(words.collect());
    }
    if text.chars().nth(4_000).is_some() {
        text = Cow::Owned(without_middle(&text, WHOLE));
    }
    text
}

/// Keeps `first` characters of the beginning and `last` of the end.
fn without_middle(text: &str, (first, last): (usize, usize)) -> String {
    let count = text.chars().count();
    let begin: String = text.chars().take(first).collect();
    let end: String = text.chars().skip(count.saturating_sub(last)).collect();
    format!("{begin}… ({} characters) …{end}", count - first - last)
}

/// Formats a time that may be long: `4.20 s`, `18.6 min`, `6.0 h`, `3.5 d`.
pub fn long_time(time: Micros) -> String {
    let seconds = time.get() / 1e6;
    match seconds {
        t if t < 120.0 => time.to_string(),
        t if t < 7_200.0 => format!("{:.1} min", t / 60.0),
        t if t < 172_800.0 => format!("{:.1} h", t / 3_600.0),
        t => format!("{:.1} d", t / 86_400.0),
    }
}

/// Formats a time as given by a user, in the largest unit of which it has at least one and without
/// superfluous decimals: `90 s`, `1 h`, `2.5 d`.
pub fn given_time(time: Micros) -> String {
    let seconds = time.get() / 1e6;
    let (unit, name) = match seconds {
        t if t < 1.0 => return time.to_string(),
        t if t < 120.0 => (1.0, "s"),
        t if t < 3_600.0 => (60.0, "min"),
        t if t < 172_800.0 => (3_600.0, "h"),
        _ => (86_400.0, "d"),
    };
    format!("{} {name}", (seconds / unit * 100.0).round() / 100.0)
}

/// Formats a number with `digits` decimals, at least one: `2.4309`. If these would hide its size, behind
/// zeros or in a long row of digits, in powers of ten: `5.70e8`, `3.10e-6`.
pub fn decimals(value: f64, digits: usize) -> String {
    const LONG: f64 = 1e5;
    let size = value.abs();
    // A single nonzero digit says too little.
    let short = size > 0.0 && size < 10.0 * 0.1_f64.powi(digits as i32);
    if value.is_finite() && (size >= LONG || short) {
        return format!("{value:.2e}");
    }
    format!("{value:.digits$}")
}

/// Formats a number with at most two decimals: `8`, `5.5`.
pub fn two_decimals(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a number of any unit with six significant digits: `120959`, `6179.53`, `0.0123457`; in powers
/// of ten if that would be a long row of digits.
pub fn six_digits(value: f64) -> String {
    const DIGITS: i32 = 6;
    let size = value.abs();
    if !value.is_finite() || size >= 1e9 || (size > 0.0 && size < 1e-4) {
        return format!("{value:.5e}");
    }
    // 0 has no logarithm.
    let before = if size > 0.0 {
        size.log10().floor() as i32 + 1
    } else {
        1
    };
    let decimals = usize::try_from(DIGITS - before).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// Parses a count from 1 to `most`.
///
/// # Errors
/// Says what the text must be.
pub fn whole_number(text: &str, most: usize) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_start_matches(['-', '+']);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let instead = in_digits(text, most);
        let instead =
            instead.map_or_else(String::new, |own| format!(" in digits alone: write {own}"));
        return Err(format!("`{text}` is not a whole number{instead}"));
    }
    match text.parse::<usize>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ if text.starts_with('-') || digits.bytes().all(|byte| byte == b'0') => {
            Err("must be at least 1".to_owned())
        }
        _ => Err(format!("must be at most {most}")),
    }
}

/// Returns the integer written as `1e3`, `100,000` or `10_000`, if it is one and at most `most`.
fn in_digits(text: &str, most: usize) -> Option<f64> {
    let mut groups = text.split([',', '_']);
    let first = groups.next()?;
    let thousands = groups.clone().all(|group| group.len() == 3) && first.len() <= 3;
    let grouped = groups.next().is_some();
    let plain = text.replace([',', '_'], "");
    let number: f64 = plain.parse().ok().filter(|_| !grouped || thousands)?;
    (number.fract() == 0.0 && (1.0..=most as f64).contains(&number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_that_is_written_otherwise_is_told_in_digits() {
        for (text, told) in [
            (
                "1e3",
                "`1e3` is not a whole number in digits alone: write 1000",
            ),
            ("100,000", "write 100000"),
            ("10_000", "write 10000"),
            ("8.0", "write 8"),
        ] {
            let error = whole_number(text, 1 << 20).unwrap_err();
            assert!(error.ends_with(told), "{error}");
        }
        for text in ["3,5", "4.5", "x", "1e9", "-1e3", "nan", "inf"] {
            let error = whole_number(text, 1 << 20).unwrap_err();
            assert_eq!(error, format!("`{text}` is not a whole number"));
        }
    }

    /// Regression: a recommended command failed for a folder with a blank, and executed what a hostile
    /// name said.
    #[test]
    fn a_shell_reads_back_what_is_quoted() {
        for word in ["runs/1", "a=b,c:d@e%f+g", "ä/β"] {
            assert_eq!(quoted(word), word);
        }
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted(Path::new("x/my run")), "'x/my run'");
        assert_eq!(quoted("$'\\\u{1b}"), r"$'$\'\\\u001b'");
        for word in [
            "it's",
            "$(touch PWN);a",
            "`x` \"y\" \\ * ~ # ! & |",
            "~",
            "a\nb\tc",
            "\u{1b}]0;x\u{7}'\\",
        ] {
            let script = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("bash")
                .args(["-c", &script])
                .output();
            let output = output.unwrap();
            assert!(output.stderr.is_empty(), "{output:?}");
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{script}");
        }
    }

    /// Regression: an entry's name with 100,000 letters was printed whole.
    #[test]
    fn words_that_nobody_reads_lose_their_middle() {
        let short = "data/weights/w: the archive does not have it";
        assert!(matches!(brief(short), Cow::Borrowed(own) if own == short));
        let told = brief(&format!("data/{}z: is not\nthere", "é".repeat(100_000))).into_owned();
        assert!(
            told.starts_with("data/éé") && told.ends_with("ééz: is not\nthere"),
            "{told}"
        );
        assert!(told.contains("é… (99748 characters) …é"), "{told}");
        assert!(told.chars().count() < 330);
        let told = brief(&"word ".repeat(10_000)).into_owned();
        assert!(told.chars().count() < 3_600 && told.contains("… (46500 characters) …"));
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1, "stage"), "1 stage");
        assert_eq!(count(0, "stage"), "0 stages");
        assert_eq!(count(1, "micro-batch"), "1 micro-batch");
        assert_eq!(count(2, "micro-batch"), "2 micro-batches");
    }

    #[test]
    fn a_name_with_a_slip_is_told_from_another_name() {
        let models = ["mlp", "gpt", "gpt2-xl", "llama", "lstm", "resnet101"];
        for (wanted, name) in [
            ("gtp", "gpt"),
            ("gpt2xl", "gpt2-xl"),
            ("GPT2_XL", "gpt2-xl"),
            ("LAMA", "llama"),
            ("resnet", "resnet101"),
            ("resnet50", "resnet101"),
            ("XL", "gpt2-xl"),
        ] {
            assert_eq!(meant(wanted, models), Some(name), "{wanted}");
        }
        for other in ["nosuch", "bert", "t5", "g", "", "tower"] {
            assert_eq!(meant(other, models), None, "{other}");
        }
        assert_eq!(meant("fp8", ["f32", "bf16", "fp16"]), None);
        assert_eq!(nearest("fp8", ["f32", "bf16"]), Some("f32"));
        assert_eq!(nearest("any", []), None);
        // A text that is no name takes no time.
        assert_eq!(meant(&"x".repeat(1 << 20), models), None);
    }

    #[test]
    fn decimals_that_are_zero_are_left_out() {
        for (value, text) in [
            (8.0, "8"),
            (5.5, "5.5"),
            (10.0, "10"),
            (0.333, "0.33"),
            (0.0, "0"),
        ] {
            assert_eq!(two_decimals(value), text);
        }
    }

    /// Regression: prices were `1.23e5`.
    #[test]
    fn a_number_of_any_unit_is_as_people_write_it() {
        for (value, wanted) in [
            (120_958.921, "120959"),
            (-6_179.526, "-6179.53"),
            (0.012_345_678, "0.0123457"),
            (123_456_789.4, "123456789"),
            (0.0, "0.00000"),
            (1.0, "1.00000"),
            (5.7e12, "5.70000e12"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(six_digits(value), wanted);
        }
    }

    /// Regression: `mine.csvx` was answered with `miss.csv`.
    #[test]
    fn an_ending_makes_no_file_the_one_that_is_meant() {
        let folder = std::env::temp_dir().join(format!("gpipe-words-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["miss.csv", "cutprofile.json", "mine.txt"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let meant = |name: &str| {
            let near = path_meant(&folder.join(name))?;
            Some(near.file_name()?.to_str()?.to_owned())
        };
        assert_eq!(meant("mine.csvx").as_deref(), Some("mine.txt"));
        assert_eq!(meant("mis.cvs").as_deref(), Some("miss.csv"));
        assert_eq!(meant("nofile.json"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_path_with_a_slip_is_told_from_another_path() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let meant = |path: &str| {
            path_meant(&root.join(path)).map(|own| own.strip_prefix(root).unwrap().to_owned())
        };
        for (path, wanted) in [
            ("src/word.rs", "src/words.rs"),
            ("scr/words.rs", "src/words.rs"),
            ("Cargo.tml", "Cargo.toml"),
        ] {
            assert_eq!(meant(path).as_deref(), Some(Path::new(wanted)), "{path}");
        }
        for other in ["src/words.rs", "scr/wrds.rs", "nosuch", ""] {
            assert_eq!(meant(other), None, "{other}");
        }
        assert_eq!(path_meant(Path::new("/")), None);
        let said = path_instead(&root.join("src/word.rs"));
        assert!(said.starts_with("; did you mean `") && said.ends_with("src/words.rs`?"));
    }

    #[test]
    fn what_there_is_begins_a_sentence_or_goes_on() {
        assert_eq!(instead(None, "there are a, b"), "; there are a, b");
        let near = ": did you mean `a`? There are a, b";
        assert_eq!(instead(Some("a"), "there are a, b"), near);
    }

    /// Regression: a norm of 570000000.000 beside a loss of 2.4309 looked similar in size.
    #[test]
    fn numbers_that_decimals_would_hide_are_in_powers_of_ten() {
        for (value, shown) in [
            (2.430_912, "2.4309"),
            (0.0, "0.0000"),
            (0.0012, "0.0012"),
            (-99_999.0, "-99999.0000"),
            (570_000_000.0, "5.70e8"),
            (-1e30, "-1.00e30"),
            (0.000_003_1, "3.10e-6"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(decimals(value, 4), shown);
        }
        assert_eq!(decimals(0.004, 3), "4.00e-3");
        assert_eq!(decimals(0.81, 3), "0.810");
    }

    /// Regression: on one axis they were 60.0 min, 6.0 h, 24.0 h.
    #[test]
    fn given_times_are_as_people_give_them() {
        for text in ["90 s", "5 min", "1 h", "24 h", "2.5 d"] {
            assert_eq!(given_time(text.parse().unwrap()), text);
        }
        assert_eq!(given_time("5ms".parse().unwrap()), "5.00 ms");
    }

    #[test]
    fn long_times_are_in_long_units() {
        for (text, long) in [
            ("90s", "90.00 s"),
            ("5min", "5.0 min"),
            ("100min", "100.0 min"),
            ("6h", "6.0 h"),
            ("60h", "2.5 d"),
        ] {
            assert_eq!(long_time(text.parse().unwrap()), long);
        }
    }
}
