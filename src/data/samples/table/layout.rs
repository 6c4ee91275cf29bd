//! Which columns are inputs, and which one is the target.

use csv::StringRecord;

/// Which columns are to be what.
pub(super) struct Wanted<'a> {
    /// Those of inputs, where they are known.
    pub(super) columns: Option<Vec<String>>,
    /// That of the target; by default the last.
    pub(super) target: Option<String>,
    /// Those that are neither.
    pub(super) dropped: &'a [String],
}

/// What columns are what, and the names of the classes.
pub(super) struct Layout {
    /// Names of the inputs' columns, and where they are.
    pub(super) inputs: Vec<(String, usize)>,
    pub(super) target: (String, usize),
}

impl Layout {
    pub(super) fn of(header: &StringRecord, wanted: &Wanted<'_>) -> Result<Self, String> {
        let all: Vec<&str> = header.iter().collect();
        let find = |name: &str| {
            let mut places = all.iter().enumerate().filter(|(_, own)| **own == name);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok((name.to_owned(), place)),
                (Some(_), Some(_)) => Err(format!("there are two columns `{name}`: rename one")),
                (None, _) => Err(format!(
                    "there is no column `{name}`; there are {}",
                    listed(&all)
                )),
            }
        };
        if all.is_empty() {
            return Err("there is no header: the table is empty".to_owned());
        }
        if let Some(place) = all.iter().position(|name| name.is_empty()) {
            return Err(format!("column {} has no name", place + 1));
        }
        let drops = |name: &str| wanted.dropped.iter().any(|own| own == name);
        let dropped = wanted.dropped.iter();
        let dropped: Vec<_> = dropped.map(|name| find(name)).collect::<Result<_, _>>()?;
        let last = all.iter().rev().find(|name| !drops(name));
        let last = last.ok_or("all columns are dropped: keep some")?;
        let target = find(wanted.target.as_deref().unwrap_or(last))?;
        if dropped.contains(&target) {
            return Err(format!(
                "column `{}` is the target and cannot be dropped: name another one with --target",
                target.0
            ));
        }
        let inputs: Vec<_> = if let Some(columns) = &wanted.columns {
            let own = columns.iter().map(|name| find(name));
            own.collect::<Result<_, _>>()?
        } else {
            let others = all.iter().enumerate();
            let others = others.filter(|(place, name)| *place != target.1 && !drops(name));
            let own = others.map(|(_, name)| find(name));
            own.collect::<Result<_, _>>()?
        };
        if inputs.is_empty() {
            return Err(format!(
                "beside the target `{}` there is no column",
                target.0
            ));
        }
        Ok(Self { inputs, target })
    }
}

/// The first few of some names.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 12;
    let few = names
        .iter()
        .take(MOST)
        .map(|name| format!("`{}`", name.as_ref()));
    let few = few.collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{few} and {more} more"),
        _ => few,
    }
}
