//! Files that pages take for granted: the reader's own data, a model from PyTorch, another page's run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use image::{Rgb, RgbImage};
use zip::ZipWriter;
use zip::write::FileOptions;

use super::pages::{blocks, root};
use super::place::Place;

/// Files and folders by name, created once in a place of their own; each page gets a copy of those that it
/// reads.
#[derive(Debug)]
pub(super) struct Given {
    place: Place,
    made: BTreeMap<String, Made>,
}

/// The command that creates a file, once.
#[derive(Debug)]
struct Made {
    by: String,
    done: OnceLock<Result<(), String>>,
}

impl Given {
    /// Takes the commands of the list's table `given`.
    pub(super) fn new(commands: &toml::Table, small: &toml::Table) -> Self {
        let place = Place::new(small);
        data(&place.clone());
        let made = commands.iter().map(|(name, by)| {
            let by = by.as_str().unwrap().to_owned();
            let done = OnceLock::new();
            (name.clone(), Made { by, done })
        });
        let made = made.collect();
        Self { place, made }
    }

    /// Copies the missing files that shell code reads into a folder.
    ///
    /// # Errors
    /// The command that creates a file fails.
    pub(super) fn put(&self, code: &str, folder: &Path) -> Result<(), String> {
        for word in read(code) {
            let wanted = |name: &&String| Path::new(word).starts_with(name.as_str());
            for name in self.made.keys().filter(wanted) {
                if folder.join(name).exists() {
                    continue;
                }
                let made = &self.made[name];
                made.done
                    .get_or_init(|| self.make(name, &made.by))
                    .clone()?;
                let to = folder.join(name);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                let copied = Command::new("cp")
                    .arg("-a")
                    .args([&self.place.clone().join(name), &to])
                    .status();
                assert!(copied.unwrap().success(), "{name}");
            }
        }
        Ok(())
    }

    fn make(&self, name: &str, by: &str) -> Result<(), String> {
        let output = self.place.shell(by, &[]);
        if output.status.success() && self.place.clone().join(name).exists() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{by}` does not make {name}: {said}"))
    }
}

/// The words of shell code that may name an input: all but those that name outputs.
fn read(code: &str) -> Vec<&str> {
    let mut writes = false;
    let words = code.split(|c: char| c.is_whitespace() || "'\";|&".contains(c));
    let words = words.filter(|word| !word.is_empty());
    words
        .filter(|word| {
            let written = std::mem::replace(&mut writes, ["-o", "--out", ">"].contains(word));
            !written
        })
        .collect()
}

/// Creates texts, tables, arrays and pictures in the folder `data`.
fn data(clone: &Path) {
    let data = clone.join("data");
    fs::create_dir(&data).unwrap();
    let text = fs::read_to_string(root().join("examples/data/moby-dick/moby-dick.txt")).unwrap();
    let start = text.find("Call me").unwrap();
    let text = &text[start..start + 40_000];
    fs::write(data.join("text.txt"), text).unwrap();
    let tokens = text.bytes().flat_map(|byte| u16::from(byte).to_le_bytes());
    fs::write(data.join("tokens.u16.bin"), tokens.collect::<Vec<_>>()).unwrap();
    let page = fs::read_to_string(root().join("book/src/plan-a-cluster.md")).unwrap();
    let (_, cluster) = blocks(&page, "toml").remove(0);
    fs::write(data.join("cluster.toml"), cluster.join("\n")).unwrap();
    tables(&data);
    pictures(&data);
}

/// Creates the same data as the NumPy lines in `book/src/bring.md`: classes in a table and in arrays, prices
/// in a table, and new samples with names.
fn tables(folder: &Path) {
    let rows: Vec<[f32; 8]> = (0..400_u32)
        .map(|row| {
            std::array::from_fn(|column| {
                ((row * 37 + column as u32 * 101) % 97) as f32 / 48.0 - 1.0
            })
        })
        .collect();
    let class = |row: &[f32; 8]| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let (mut table, mut new) = (
        "a,b,c,d,e,f,g,h,species\n".to_owned(),
        "plant,a,b,c,d,e,f,g,h\n".to_owned(),
    );
    let mut houses = "area,rooms,price\n".to_owned();
    for (number, row) in rows.iter().enumerate() {
        let numbers = row.map(|value| value.to_string()).join(",");
        let species = ["setosa", "versicolor", "virginica"][class(row)];
        writeln!(table, "{numbers},{species}").unwrap();
        writeln!(new, "{number},{numbers}").unwrap();
        let (area, rooms) = (40 + number % 160, 1 + number % 5);
        writeln!(houses, "{area},{rooms},{}", 3000 * area + 10_000 * rooms).unwrap();
    }
    fs::write(folder.join("table.csv"), table).unwrap();
    fs::write(folder.join("new.csv"), new).unwrap();
    fs::write(folder.join("houses.csv"), houses).unwrap();
    let x = rows.iter().flatten().flat_map(|value| value.to_le_bytes());
    let y = rows
        .iter()
        .flat_map(|row| (class(row) as i64).to_le_bytes());
    let arrays = [
        ("x", "<f4", "(400, 8)", x.collect::<Vec<_>>()),
        ("y", "<i8", "(400,)", y.collect()),
    ];
    let mut archive = ZipWriter::new(fs::File::create(folder.join("arrays.npz")).unwrap());
    for (name, kind, shape, bytes) in arrays {
        let head = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        let head = format!("{head:<117}\n");
        archive
            .start_file(format!("{name}.npy"), FileOptions::default())
            .unwrap();
        archive.write_all(b"\x93NUMPY\x01\x00").unwrap();
        archive
            .write_all(&(head.len() as u16).to_le_bytes())
            .unwrap();
        archive.write_all(head.as_bytes()).unwrap();
        archive.write_all(&bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// Creates two classes of forty pictures, and some pictures in one folder.
fn pictures(folder: &Path) {
    for (class, red, count) in [
        ("images/cat", 30, 40),
        ("images/dog", 220, 40),
        ("holiday", 120, 4),
    ] {
        let folder = folder.join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..count {
            let picture = RgbImage::from_fn(32, 32, |x, y| {
                Rgb([red, (x * 7) as u8, (y * 6 + number) as u8])
            });
            picture
                .save(folder.join(format!("{number:03}.jpg")))
                .unwrap();
        }
    }
}
