//! Serialization of items for caches.

use tch::{Device, Kind, Tensor};

use gpipe_torch::TorchError;

/// Items that a cache can hold.
pub trait Store: Sized {
    /// Appends the item.
    ///
    /// # Errors
    /// The item's type cannot be stored.
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()>;

    /// Reads an item from the front.
    ///
    /// # Errors
    /// The bytes are not of this type.
    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self>;

    /// Appends many items, like repeated [`Store::put`].
    ///
    /// # Errors
    /// As [`Store::put`].
    fn put_all(all: &[Self], bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        all.iter().try_for_each(|one| one.put(bytes))
    }

    /// Reads `count` items from the front, like repeated [`Store::take`].
    ///
    /// # Errors
    /// As [`Store::take`].
    fn take_all(count: usize, bytes: &mut &[u8]) -> anyhow::Result<Vec<Self>> {
        // No capacity is reserved: the count comes from the bytes, and may be anything.
        (0..count).map(|_| Self::take(bytes)).collect()
    }
}

/// Takes the next `count` bytes.
fn cut<'b>(bytes: &mut &'b [u8], count: usize) -> anyhow::Result<&'b [u8]> {
    let (front, rest) = bytes
        .split_at_checked(count)
        .ok_or_else(|| anyhow::anyhow!("{count} more bytes expected, {} there", bytes.len()))?;
    *bytes = rest;
    Ok(front)
}

macro_rules! plain {
    ($($number:ty),*) => {$(
        impl Store for $number {
            fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
                bytes.extend_from_slice(&self.to_le_bytes());
                Ok(())
            }

            fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
                let front = cut(bytes, size_of::<Self>())?;
                Ok(Self::from_le_bytes(front.try_into()?))
            }

            // In one piece: copying a row item by item would be slower than reading it again.
            fn put_all(all: &[Self], bytes: &mut Vec<u8>) -> anyhow::Result<()> {
                const WIDTH: usize = size_of::<$number>();
                let start = bytes.len();
                bytes.resize(start + all.len() * WIDTH, 0);
                let places = bytes[start..].as_chunks_mut::<WIDTH>().0;
                for (place, number) in places.iter_mut().zip(all) {
                    *place = number.to_le_bytes();
                }
                Ok(())
            }

            fn take_all(count: usize, bytes: &mut &[u8]) -> anyhow::Result<Vec<Self>> {
                const WIDTH: usize = size_of::<$number>();
                let size = count.saturating_mul(WIDTH);
                let numbers = cut(bytes, size)?.as_chunks::<WIDTH>().0;
                let numbers = numbers.iter().map(|own| Self::from_le_bytes(*own));
                Ok(numbers.collect())
            }
        }
    )*};
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Store> Store for Vec<T> {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        (self.len() as u64).put(bytes)?;
        T::put_all(self, bytes)
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        let count = usize::try_from(u64::take(bytes)?)?;
        T::take_all(count, bytes)
    }
}

impl Store for String {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        (self.len() as u64).put(bytes)?;
        bytes.extend_from_slice(self.as_bytes());
        Ok(())
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        let count = usize::try_from(u64::take(bytes)?)?;
        Ok(String::from_utf8(cut(bytes, count)?.to_vec())?)
    }
}

impl<A: Store, B: Store> Store for (A, B) {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        self.0.put(bytes)?;
        self.1.put(bytes)
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        Ok((A::take(bytes)?, B::take(bytes)?))
    }
}

/// Supported tensor types, indexed by their number in the bytes.
const KINDS: [Kind; 10] = [
    Kind::Uint8,
    Kind::Int8,
    Kind::Int16,
    Kind::Int,
    Kind::Int64,
    Kind::Half,
    Kind::Float,
    Kind::Double,
    Kind::Bool,
    Kind::BFloat16,
];

impl Store for Tensor {
    fn put(&self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        let kind = KINDS.iter().position(|kind| *kind == self.kind());
        let kind =
            kind.ok_or_else(|| anyhow::anyhow!("a tensor of {:?} cannot be cached", self.kind()))?;
        (kind as u8).put(bytes)?;
        self.size().put(bytes)?;
        let here = self
            .f_contiguous()
            .and_then(|all| all.f_to_device(Device::Cpu));
        let here = here.map_err(TorchError::from)?;
        let count = here.numel();
        let start = bytes.len();
        bytes.resize(start + count * here.kind().elt_size_in_bytes(), 0);
        let data = here.f_copy_data_u8(&mut bytes[start..], count);
        Ok(data.map_err(TorchError::from)?)
    }

    fn take(bytes: &mut &[u8]) -> anyhow::Result<Self> {
        let kind = KINDS.get(usize::from(u8::take(bytes)?));
        let kind = *kind.ok_or_else(|| anyhow::anyhow!("no tensor begins here"))?;
        let shape = Vec::<i64>::take(bytes)?;
        let product = |product: i64, side: &i64| product.checked_mul(*side);
        let count = shape.iter().try_fold(1, product).unwrap_or(-1);
        let size = usize::try_from(count)?.saturating_mul(kind.elt_size_in_bytes());
        let data = cut(bytes, size)?;
        let tensor = Tensor::f_from_data_size(data, &shape, kind);
        Ok(tensor.map_err(TorchError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again<T: Store>(item: &T) -> T {
        let mut bytes = Vec::new();
        item.put(&mut bytes).unwrap();
        let mut all = &bytes[..];
        let again = T::take(&mut all).unwrap();
        assert!(all.is_empty());
        for end in 0..bytes.len() {
            assert!(T::take(&mut &bytes[..end]).is_err(), "cut at {end}");
        }
        again
    }

    #[test]
    fn what_is_put_is_taken_and_cut_bytes_are_refused() {
        let item = (vec![1_i64, -2], ("mañana".to_owned(), 0.5_f32));
        assert_eq!(again(&item), item);
        for kind in KINDS {
            let tensor = Tensor::from_slice(&[0_i64, 1, 1, 0, 1, 0]).to_kind(kind);
            let tensor = tensor.view([2, 3]).transpose(0, 1);
            let back = again(&tensor);
            assert_eq!((back.kind(), back.size()), (kind, vec![3, 2]));
            assert_eq!(back, tensor);
        }
        let scalar = Tensor::from(3_i64);
        assert_eq!(again(&scalar), scalar);
    }
}
