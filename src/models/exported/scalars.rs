//! Arithmetic on sizes with Python's semantics.

use super::program::Scalar;
use gpipe_torch::Number;

impl Scalar {
    /// # Errors
    /// The number of operands is wrong, a division is by zero, or a number is too large.
    pub(super) fn apply(self, operands: &[Number]) -> Result<Number, String> {
        let wrong = || format!("{self:?} of {operands:?} has no value");
        match operands {
            [a] => self.of_one(*a),
            [Number::Int(a), Number::Int(b)] => self.of_integers(*a, *b),
            [a, b] => self.of_floats(real(*a), real(*b)),
            _ => None,
        }
        .ok_or_else(wrong)
    }

    fn of_one(self, a: Number) -> Option<Number> {
        match (self, a) {
            (Self::Neg, Number::Int(a)) => a.checked_neg().map(Number::Int),
            (Self::Neg, Number::Float(a)) => Some(Number::Float(-a)),
            (Self::Not, Number::Bool(a)) => Some(Number::Bool(!a)),
            (Self::Float, a) => Some(Number::Float(real(a))),
            (Self::Sqrt, a) => Some(Number::Float(real(a).sqrt())),
            (Self::Int, Number::Float(a)) if a.abs() < 9e15 => Some(Number::Int(a as i64)),
            (Self::Int, Number::Int(_)) => Some(a),
            _ => None,
        }
    }

    fn of_integers(self, a: i64, b: i64) -> Option<Number> {
        let integer = match self {
            Self::Add => a.checked_add(b),
            Self::Sub => a.checked_sub(b),
            Self::Mul => a.checked_mul(b),
            Self::FloorDiv => {
                let down = i64::from(a.checked_rem(b)? != 0 && (a < 0) != (b < 0));
                a.checked_div(b)?.checked_sub(down)
            }
            Self::Mod => {
                let rest = a.checked_rem(b)?;
                let other_sign = rest != 0 && (rest < 0) != (b < 0);
                Some(if other_sign { rest + b } else { rest })
            }
            Self::Pow => a.checked_pow(u32::try_from(b).ok()?),
            Self::Min => Some(a.min(b)),
            Self::Max => Some(a.max(b)),
            Self::TrueDiv => {
                return (b != 0).then(|| Number::Float(a as f64 / b as f64));
            }
            _ => return self.compared(a.cmp(&b)),
        };
        integer.map(Number::Int)
    }

    fn of_floats(self, a: f64, b: f64) -> Option<Number> {
        let float = match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::TrueDiv if b != 0.0 => a / b,
            Self::Pow => a.powf(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            _ => return self.compared(a.partial_cmp(&b)?),
        };
        Some(Number::Float(float))
    }

    fn compared(self, order: std::cmp::Ordering) -> Option<Number> {
        let holds = match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
            _ => return None,
        };
        Some(Number::Bool(holds))
    }
}

fn real(number: Number) -> f64 {
    match number {
        Number::Int(number) => number as f64,
        Number::Float(number) => number,
        Number::Bool(flag) => f64::from(u8::from(flag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_divided_as_python_does_it() {
        let of = |what: Scalar, a, b| what.apply(&[Number::Int(a), Number::Int(b)]);
        for (a, b, quotient, rest) in [
            (7, 2, 3, 1),
            (-7, 2, -4, 1),
            (7, -2, -4, -1),
            (-7, -2, 3, -1),
        ] {
            assert_eq!(of(Scalar::FloorDiv, a, b), Ok(Number::Int(quotient)));
            assert_eq!(of(Scalar::Mod, a, b), Ok(Number::Int(rest)));
        }
        for what in [Scalar::FloorDiv, Scalar::Mod, Scalar::TrueDiv] {
            assert!(of(what, 1, 0).is_err());
            assert!(of(what, i64::MIN, -1).is_err() || what == Scalar::TrueDiv);
        }
        assert!(of(Scalar::Mul, i64::MAX, 2).is_err());
        assert_eq!(of(Scalar::Lt, 1, 2), Ok(Number::Bool(true)));
    }
}
