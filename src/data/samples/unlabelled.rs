//! Inputs without targets for a trained model, read with the options saved by its run.

use std::path::{Path, PathBuf};

use tch::Tensor;

use super::found::{Found, Labels};
use super::images::{ENDINGS, Images, ending};
use super::kept::Kept;
use super::kinds::{self, Kind as What};
use super::labels::Counted;
use super::numbers::Numbers;
use super::table::Learns;
use super::{Missing, Pair, SampleOptions, Samples, damage, table};
use crate::arrays::NamedArrays;
use crate::{Array, DataError, Dataset, Idx, Place};

/// List of supported data, for messages.
const KNOWN: &str = "an image (.jpg, .jpeg, .png) or a folder of images, a table (.csv, .tsv, .parquet, .arrow), \
                     an array of inputs (.npy, `x` in .npz or .safetensors), an IDX file";

impl Samples {
    /// Opens inputs without targets, for a trained model: an image or a folder of images, a table
    /// without its target column, or an array of inputs. They are read with the scales, columns and
    /// class names that a run [saved](SampleOptions::kept). Their targets are meaningless zeros.
    ///
    /// ```
    /// use gpipe::data::{SampleOptions, Samples};
    ///
    /// # let folder = std::env::temp_dir().join(format!("gpipe-unlabelled-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let (known, new) = (folder.join("iris.csv"), folder.join("new.csv"));
    /// std::fs::write(&known, "length,width,species\n5.1,3.5,setosa\n6.2,2.9,virginica\n")?;
    /// std::fs::write(&new, "width,length\n3.0,5.9\n")?;
    /// let trained = Samples::open(&known, &SampleOptions::default().held_out(0.0))?;
    /// let options = SampleOptions::default().kept(&trained.kept())?;
    /// let samples = Samples::unlabelled(&new, &options)?;
    /// assert_eq!((samples.len(), samples.input()), (1, &[2][..]));
    /// assert_eq!(samples.class_names(), ["setosa", "virginica"]);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// The data is none of these, or is damaged or incomplete, or the options have no saved
    /// description.
    pub fn unlabelled(path: &Path, options: &SampleOptions) -> Result<Self, DataError> {
        let Some(kept) = &options.kept else {
            let what = "what a run has kept of its data says how inputs are read: give it to \
                        SampleOptions::kept";
            return Err(DataError::Settings(what.to_owned()));
        };
        let options = options.clone().held_out(0.0).augment(false);
        options.check()?;
        let found = if ENDINGS.contains(&ending(path).as_str()) {
            images(path, kept, &options)?
        } else {
            match kinds::kind(path)? {
                Some(What::Folder) => images(path, kept, &options)?,
                Some(What::Table | What::Columns) => rows(path, kept, options.missing)?,
                Some(What::Npy) => inputs(Array::npy(path)?),
                Some(What::Npz) => inputs(NamedArrays::npz(path)?.inputs(options.input_name())?),
                Some(What::Safetensors) => {
                    inputs(NamedArrays::safetensors(path)?.inputs(options.input_name())?)
                }
                Some(What::Idx) => inputs(Idx::open(path)?),
                Some(What::TfRecord) | None => {
                    let what = format!("not a format that inputs are read from: {KNOWN}");
                    return Err(DataError::bad_path(path, what));
                }
            }
        };
        if found.train.is_empty() {
            return Err(DataError::bad_path(path, "there is no sample in it"));
        }
        let labels = match kept.classes {
            Some(_) if !kept.names.is_empty() => Labels::Named(kept.names.clone()),
            Some(classes) => Labels::Counted(Counted {
                classes,
                least: 0,
                only: None,
                unused: 0,
            }),
            None => Labels::Numbers,
        };
        let input = found.input.clone();
        let samples = Self::of_found(Found { labels, ..found }, &options);
        samples.map_err(|error| match other_columns(path, kept, &input) {
            Some(other) => other,
            None => error,
        })
    }

    /// Returns the origin of sample `index` of [`Samples::in_order`].
    pub fn place(&self, index: usize) -> Place {
        self.all.place(0, index)
    }
}

/// A meaningless target.
fn nothing() -> Tensor {
    Tensor::from(0_i64)
}

/// Opens one image, or all images in a folder and its subfolders.
fn images(path: &Path, kept: &Kept, options: &SampleOptions) -> Result<Found, DataError> {
    if !kept.columns.is_empty() {
        let is_empty = path.is_dir() && super::images::entries(path)?.is_empty();
        let this = if is_empty {
            "an empty folder"
        } else {
            "images"
        };
        return Err(not_of_run(path, this, "a table"));
    }
    let (image, picture) = options.picture()?;
    let all = Images::unlabelled(path, picture)?;
    let damaged = if path.is_dir() {
        damage::checked(path, all.paths(), options.skip_bad)?
    } else {
        let wrong = damage::wrong(path).map(|why| DataError::bad_path(path, why));
        wrong.map_or(Ok(Vec::new()), Err)?
    };
    Ok(Found {
        input: image.to_vec(),
        damaged,
        about: ["image", "images"],
        ..Found::new(all, None)
    })
}

/// Reads the rows of a table with the columns of the training data.
fn rows(path: &Path, kept: &Kept, missing: Missing) -> Result<Found, DataError> {
    let Some(first) = kept.columns.first() else {
        let other = if kept.names.is_empty() {
            "arrays: name inputs as they were (.npy, `x` in .npz or .safetensors, an IDX file)"
        } else {
            "images: name one (.jpg, .jpeg, .png), or a folder of them"
        };
        return Err(not_of_run(path, "a table", other));
    };
    // The input columns are known; any of them serves as the target, which is ignored.
    let kept = Kept {
        target: Some(first.clone()),
        ..kept.clone()
    };
    let options = SampleOptions {
        kept: Some(kept),
        missing,
        ..SampleOptions::default()
    };
    let found = table::read(&[PathBuf::from(path)], None, &options, Learns::Nothing)?;
    let samples = Dataset::new(found.train);
    let samples = samples.map(|(x, _)| -> anyhow::Result<Pair> { Ok((x, nothing())) });
    Ok(Found {
        input: found.input,
        about: found.about,
        ..Found::new(samples, None)
    })
}

/// Explains that inputs of another shape are not a table, if the training data was one.
fn other_columns(path: &Path, kept: &Kept, input: &[i64]) -> Option<DataError> {
    let columns: Vec<String> = kept.columns.iter().map(|own| format!("`{own}`")).collect();
    let is_table = matches!(kinds::kind(path), Ok(Some(What::Table | What::Columns)));
    (!columns.is_empty() && !is_table).then(|| {
        let table = format!(
            "a table: name one (.csv, .tsv, .parquet, .arrow) with its columns, {}",
            damage::named(&columns)
        );
        not_of_run(path, &format!("an array of items {input:?}"), &table)
    })
}

fn not_of_run(path: &Path, this: &str, other: &str) -> DataError {
    let what = format!("this is {this}, but the model was trained on {other}");
    DataError::bad_path(path, what)
}

fn inputs<A: Numbers>(array: A) -> Found {
    let input = array.shape().get(1..).unwrap_or_default().to_vec();
    let samples = Dataset::new(array).map(|x| -> anyhow::Result<Pair> { Ok((x, nothing())) });
    Found {
        input,
        ..Found::new(samples, None)
    }
}
