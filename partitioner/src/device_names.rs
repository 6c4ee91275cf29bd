//! Notation of devices: `4`, `cpu*4`, `cuda:0-3`, `cuda`, `auto`.

use std::str::FromStr;

use crate::words::{instead, meant, whole_number};

/// Most devices of a list.
const MOST: usize = 1 << 16;

/// One entry of a list of devices.
///
/// # Examples
/// ```
/// use gpipe_partitioner::DeviceNames;
///
/// assert_eq!("cpu*4".parse(), Ok(DeviceNames::Cpu(4)));
/// assert_eq!("cuda:0-3".parse(), Ok(DeviceNames::Cuda { first: 0, last: 3, times: 1 }));
/// assert_eq!(DeviceNames::count("cuda:0-3,cpu"), Ok(5));
/// assert!(DeviceNames::count("cuda").is_err_and(|why| why.contains("how many")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceNames {
    /// `cpu`, `cpu*4`: that many stages on the CPU.
    Cpu(usize),
    /// `cuda:0`, `cuda:0-3`, `cuda:0*2`: these CUDA devices, each that many times.
    Cuda {
        /// The first of them.
        first: usize,
        /// The last one, which may be the first.
        last: usize,
        /// Number of times that each occurs.
        times: usize,
    },
    /// `cuda`: all CUDA devices of the machine.
    AllCuda,
    /// `auto`: all CUDA devices of the machine, or a stage for each core if there is none.
    Auto,
    /// `4`: that many devices of `auto`, or of the CPU.
    Number(usize),
}

impl DeviceNames {
    /// Returns the number of devices in a list with commas between its entries.
    ///
    /// # Errors
    /// An entry cannot be read, or depends on the machine.
    pub fn count(list: &str) -> Result<usize, String> {
        let mut all = 0_usize;
        for entry in list.split(',') {
            all += match entry.parse()? {
                Self::Cpu(number) | Self::Number(number) => number,
                Self::Cuda { first, last, times } => (last - first + 1) * times,
                Self::AllCuda | Self::Auto => {
                    return Err(format!(
                        "`{}` depends on the machine: say how many devices there are",
                        entry.trim()
                    ));
                }
            };
        }
        if all > MOST {
            return Err(format!("must be at most {MOST}"));
        }
        Ok(all)
    }
}

impl FromStr for DeviceNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let unknown = || {
            let choices = "devices are `cpu` and `cuda:N` (`cuda:0`, `cuda:1`, …), several are \
                           `cpu*4`, `cuda:0-3`, `cuda`, `auto` or a number";
            let more = instead(near(text).as_deref(), choices);
            format!("unknown device `{text}`{more}")
        };
        if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
            let number = whole_number(text, MOST).map(Self::Number);
            return number.map_err(|why| match number_first(text) {
                Some(meant) => format!("`{text}`: did you mean `{meant}`?"),
                None => why,
            });
        }
        let (name, times) = match text.split_once('*') {
            Some((name, times)) => {
                let times = whole_number(times, MOST).map_err(|why| format!("`{text}`: {why}"))?;
                (name.trim_end(), times)
            }
            None => (text, 1),
        };
        match name {
            "cpu" => return Ok(Self::Cpu(times)),
            "cuda" if times == 1 => return Ok(Self::AllCuda),
            "auto" if times == 1 => return Ok(Self::Auto),
            _ => {}
        }
        if name.starts_with("cpu:") {
            return Err(format!(
                "`{text}`: the CPU has no number: `cpu` is a stage on it, and `cpu*4` are four"
            ));
        }
        let range = name.strip_prefix("cuda:").ok_or_else(unknown)?;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let index = |text: &str| {
            let index = text.parse().ok().filter(|index| *index < MOST);
            index.ok_or_else(unknown)
        };
        let (first, last) = (index(first)?, index(last)?);
        if first > last {
            return Err(format!("`{text}`: {first} comes behind {last}"));
        }
        Ok(Self::Cuda { first, last, times })
    }
}

/// Returns the likely meaning: in lower case, and with `cuda` for `gpu`.
fn near(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let other = match lower.strip_prefix("gpu") {
        Some(behind) => format!("cuda{}", behind.strip_prefix('s').unwrap_or(behind)),
        None => lower,
    };
    // The same text is no device either, and suggesting it would never end.
    if other != text && other.parse::<DeviceNames>().is_ok() {
        return Some(other);
    }
    meant(&other, ["cpu", "cuda", "auto"]).map(str::to_owned)
}

/// Returns the likely meaning of a number before the name: `2x`, `2xcpu` or `2*gpu`.
fn number_first(text: &str) -> Option<String> {
    let behind = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = &text[..text.len() - behind.len()];
    let name = behind
        .trim_start()
        .strip_prefix(['x', 'X', '*', '\u{d7}'])?;
    let name = name.trim().to_lowercase();
    let meant = match name.trim_end_matches('s') {
        "" | "cpu" => format!("cpu*{number}"),
        "cuda" | "gpu" => number.to_owned(),
        _ => return None,
    };
    (!number.is_empty()).then_some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let cuda = |first, last, times| DeviceNames::Cuda { first, last, times };
        for (text, names) in [
            ("cpu", DeviceNames::Cpu(1)),
            (" cpu * 2 ", DeviceNames::Cpu(2)),
            ("cuda:1", cuda(1, 1, 1)),
            ("cuda:2-5", cuda(2, 5, 1)),
            ("cuda:0-1*3", cuda(0, 1, 3)),
            ("cuda", DeviceNames::AllCuda),
            ("auto", DeviceNames::Auto),
            ("8", DeviceNames::Number(8)),
        ] {
            assert_eq!(text.parse(), Ok(names), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_told() {
        for (text, why) in [
            ("", "unknown device ``"),
            (
                "gpu",
                "unknown device `gpu`: did you mean `cuda`? Devices are `cpu`",
            ),
            ("GPU:0-3", "did you mean `cuda:0-3`?"),
            ("gpus", "did you mean `cuda`?"),
            ("CPU*2", "did you mean `cpu*2`?"),
            ("cdua", "did you mean `cuda`?"),
            ("gpu:x", "unknown device `gpu:x`"),
            ("mps", "unknown device `mps`; devices are"),
            ("cuda:", "unknown device"),
            (
                "cpu:0",
                "`cpu:0`: the CPU has no number: `cpu` is a stage on it",
            ),
            ("cuda:-1", "unknown device"),
            ("cuda:3-1", "3 comes behind 1"),
            ("cuda:99999999999999999999", "unknown device"),
            ("cpu*0", "must be at least 1"),
            ("cpu*-1", "must be at least 1"),
            ("cpu*x", "`cpu*x`: `x` is not a whole number"),
            ("cuda*2", "unknown device"),
            ("0", "must be at least 1"),
            ("-3", "must be at least 1"),
            ("4x", "`4x`: did you mean `cpu*4`?"),
            ("2xCPU", "did you mean `cpu*2`?"),
            ("2 * gpus", "did you mean `2`?"),
            ("4.5", "`4.5` is not a whole number"),
            ("100000", "must be at most 65536"),
        ] {
            let error = text.parse::<DeviceNames>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn lists_are_counted() {
        assert_eq!(DeviceNames::count("4"), Ok(4));
        assert_eq!(DeviceNames::count("cpu,cpu"), Ok(2));
        assert_eq!(DeviceNames::count("cuda:0-7*2, cpu"), Ok(17));
        assert!(DeviceNames::count("auto").is_err_and(|why| why.contains("how many")));
        assert!(DeviceNames::count("65536,1").is_err());
    }
}
