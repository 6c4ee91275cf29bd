//! An index of the rows of a text.

use std::path::Path;

use crate::disk_file::DiskFile;
use crate::{DataError, Place, magic};

/// Bytes read at a time.
const BLOCK: usize = 1 << 18;
/// Longest row: anything longer has an unclosed quote, or is not text.
const MOST: u64 = 1 << 26;

/// Position of a row, in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    start: u64,
    bytes: u32,
    /// Line number from 1; texts with too many lines are rejected.
    line: u32,
}

/// A text with random access to its rows.
#[derive(Debug)]
pub(super) struct RowsOfText {
    file: DiskFile,
    pub(super) rows: Vec<Row>,
    sum: u32,
}

/// Rules for the ends of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// Separator of cells, if line breaks within quoted cells do not end a row.
    pub(super) separator: Option<u8>,
    /// Whether blank lines are rows.
    pub(super) blank: bool,
}

/// State of the search for a row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the beginning of a cell.
    Cell,
    /// In an unquoted cell, or after a quoted one.
    Plain,
    Quoted,
    /// After a quote in a quoted cell: the closing quote, or half of a doubled one.
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

/// Returns the line of an unclosed quoted cell, if there is one.
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

/// Message about an unclosed quote.
pub(crate) const OPEN_QUOTE: &str = "a double quote is opened here and never closed: close it, or \
                                               write a quote that is meant as such twice, in double quotes";

impl RowsOfText {
    /// Scans a file.
    ///
    /// # Errors
    /// The file cannot be read, a row is too long, there are too many rows, or a quote is not closed.
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

    /// Returns a row's bytes without the line ending.
    ///
    /// # Errors
    /// The file cannot be read, or has been truncated.
    pub(super) fn read(&self, row: usize) -> Result<Vec<u8>, DataError> {
        let Row { start, bytes, .. } = self.rows[row];
        let mut text = vec![0; bytes as usize];
        self.file.read(&mut text, start)?;
        let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
        text.truncate(end.map_or(0, |end| end + 1));
        // A byte-order mark is not part of the text.
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
    /// Line of the current cell's beginning.
    cell: u64,
    /// Offset and line of the row's beginning.
    start: u64,
    first: u64,
    line: u64,
    /// Whether the row is blank so far.
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

    /// Checks that no quote is open at the end.
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

    /// Ends the row before `end`, where the next one begins.
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
