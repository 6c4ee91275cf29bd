//! Where the rows of a text begin.

use std::path::Path;

use crate::disk_file::DiskFile;
use crate::{DataError, Place, magic};

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 18;
/// More bytes than this are no row: a quote was left open, say, or this is no text.
const MOST: u64 = 1 << 26;

/// A row: 16 bytes for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    start: u64,
    bytes: u32,
    /// From 1; a text of more lines than fit here is refused.
    line: u32,
}

/// A text of which rows are read one by one.
#[derive(Debug)]
pub(super) struct RowsOfText {
    file: DiskFile,
    pub(super) rows: Vec<Row>,
    sum: u32,
}

/// How rows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// What stands between cells, where line ends within quoted cells end no row.
    pub(super) separator: Option<u8>,
    /// Whether rows of white space alone are rows.
    pub(super) blank: bool,
}

/// Where the search for the end of a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the begin of a cell.
    Cell,
    /// In a cell that has no quotes around it, or behind those.
    Plain,
    Quoted,
    /// Behind a quote in a quoted cell: the end of it, or half of one that is doubled.
    Quote,
}

impl State {
    fn next(self, byte: u8, separator: u8) -> Self {
        match (self, byte) {
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Cell | Self::Quote, b'"') | (Self::Quoted, _) => Self::Quoted,
            (_, byte) if byte == separator || byte == b'\n' => Self::Cell,
            _ => Self::Plain,
        }
    }
}

/// The line in which a quoted cell begins that never ends, where there is one.
pub(crate) fn open_quote(text: &[u8], separator: u8) -> Option<u64> {
    let (mut state, mut line, mut begin) = (State::Cell, 1, 1);
    for byte in text {
        if state == State::Cell {
            begin = line;
        }
        state = state.next(*byte, separator);
        line += u64::from(*byte == b'\n');
    }
    (state == State::Quoted).then_some(begin)
}

/// What is wrong there.
pub(crate) const OPEN_QUOTE: &str = "a double quote is opened here and never closed: close it, or \
                                               write a quote that is meant as such twice, in double quotes";

impl RowsOfText {
    /// Goes through a file once.
    ///
    /// # Errors
    /// It cannot be read; a row has too many bytes, or there are too many rows; a quote is open where it
    /// ends: which one.
    pub(super) fn open(path: &Path, rule: Rule) -> Result<Self, DataError> {
        magic::refuse_other(path, &[])?;
        let file = DiskFile::open(path)?;
        let mut search = Search {
            path,
            rule,
            rows: Vec::new(),
            state: State::Cell,
            cell: 1,
            start: 0,
            line: 1,
            first: 1,
            blank: true,
        };
        let mut block = vec![0; BLOCK.min(file.len() as usize)];
        let (mut sum, mut place) = (0, 0);
        while place < file.len() {
            let bytes = (file.len() - place).min(BLOCK as u64) as usize;
            let block = &mut block[..bytes];
            file.read(block, place)?;
            sum = crc32c::crc32c_append(sum, block);
            search.block(block, place)?;
            place += bytes as u64;
        }
        search.closed()?;
        search.end(place)?;
        let rows = search.rows;
        Ok(Self { file, rows, sum })
    }

    /// A row's bytes, without the end of the line.
    ///
    /// # Errors
    /// The file cannot be read, or has been cut off since.
    pub(super) fn read(&self, row: usize) -> Result<Vec<u8>, DataError> {
        let Row { start, bytes, .. } = self.rows[row];
        let mut text = vec![0; bytes as usize];
        self.file.read(&mut text, start)?;
        let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
        text.truncate(end.map_or(0, |end| end + 1));
        // A byte-order mark is no part of the text.
        if start == 0 && text.starts_with(b"\xef\xbb\xbf") {
            text.drain(..3);
        }
        Ok(text)
    }

    pub(super) fn place(&self, row: usize) -> Place {
        Place::Line {
            path: self.file.path().to_owned(),
            line: self.rows[row].line.into(),
        }
    }

    pub(super) fn bad(&self, row: usize, what: impl Into<String>) -> DataError {
        DataError::Bad {
            place: self.place(row),
            what: what.into(),
        }
    }

    pub(super) fn sum(&self) -> u32 {
        self.sum
    }
}

struct Search<'a> {
    path: &'a Path,
    rule: Rule,
    rows: Vec<Row>,
    state: State,
    /// The line in which the cell begins.
    cell: u64,
    /// Where the row begins, and in which line.
    start: u64,
    first: u64,
    line: u64,
    /// Whether the row has had nothing but white space.
    blank: bool,
}

impl Search<'_> {
    fn block(&mut self, block: &[u8], from: u64) -> Result<(), DataError> {
        for (place, byte) in (from..).zip(block) {
            if let Some(separator) = self.rule.separator {
                if self.state == State::Cell {
                    self.cell = self.line;
                }
                self.state = self.state.next(*byte, separator);
            }
            self.blank &= byte.is_ascii_whitespace();
            if *byte != b'\n' {
                continue;
            }
            self.line += 1;
            if self.state != State::Quoted {
                self.end(place + 1)?;
            }
        }
        self.fits(from + block.len() as u64)
    }

    /// That no quote is open where the text ends.
    fn closed(&self) -> Result<(), DataError> {
        if self.state != State::Quoted {
            return Ok(());
        }
        Err(DataError::Bad {
            place: Place::Line {
                path: self.path.to_owned(),
                line: self.cell,
            },
            what: OPEN_QUOTE.to_owned(),
        })
    }

    fn fits(&self, end: u64) -> Result<(), DataError> {
        let bytes = end - self.start;
        if bytes <= MOST {
            return Ok(());
        }
        let why = match self.rule.separator {
            Some(_) => "was a double quote left open?",
            None => "is this a text?",
        };
        Err(DataError::Bad {
            place: Place::Line {
                path: self.path.to_owned(),
                line: self.first,
            },
            what: format!("a row of more than {} MiB begins here: {why}", MOST >> 20),
        })
    }

    /// The row ends before `end`, where the next one begins.
    fn end(&mut self, end: u64) -> Result<(), DataError> {
        self.fits(end)?;
        if end > self.start && (self.rule.blank || !self.blank) {
            let Ok(line) = u32::try_from(self.first) else {
                let what = format!("there are more than {} lines: cut it in several", u32::MAX);
                return Err(DataError::bad_path(self.path, what));
            };
            self.rows.push(Row {
                start: self.start,
                bytes: (end - self.start) as u32,
                line,
            });
        }
        self.start = end;
        self.first = self.line;
        (self.state, self.blank) = (State::Cell, true);
        Ok(())
    }
}
