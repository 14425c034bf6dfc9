//! Log-linear buckets: exact below `2^(BITS+1)`, then `2^BITS` buckets per doubling.
//!
//! The middle of a bucket differs from its values by at most half the bucket's width: `1 / 2^(BITS+1)` of the value.

/// Index of a value's bucket.
#[inline]
pub const fn index<const BITS: u32>(v: u64) -> usize {
    if v < 1 << (BITS + 1) {
        return v as usize;
    }
    let shift = v.ilog2() - BITS;
    ((shift as usize) << BITS) + (v >> shift) as usize
}

/// Like [`index`], for values below `2^31`. It is faster, because a floating-point number has its exponent (the
/// logarithm) and its leading bits side by side.
#[inline]
pub fn index_of_small<const BITS: u32>(v: u32) -> usize {
    if v < 1 << BITS {
        return v as usize;
    }
    const BIAS: usize = 1023;
    let high = f64::from(v as i32).to_bits() >> (f64::MANTISSA_DIGITS - 1 - BITS);
    // Subtract an offset such that the exponent of `2^BITS` starts the second group of buckets.
    (high as usize).wrapping_sub((BIAS + BITS as usize - 1) << BITS)
}

/// Number of low bits in which a bucket's values differ.
const fn shift<const BITS: u32>(index: usize) -> u32 {
    ((index >> BITS) as u32).saturating_sub(1)
}

/// Least value of a bucket.
pub const fn lower<const BITS: u32>(index: usize) -> u64 {
    let shift = shift::<BITS>(index);
    ((index - ((shift as usize) << BITS)) as u64) << shift
}

/// Number of values in a bucket.
pub const fn width<const BITS: u32>(index: usize) -> u64 {
    1 << shift::<BITS>(index)
}

/// The value that represents a bucket.
pub const fn middle<const BITS: u32>(index: usize) -> u64 {
    lower::<BITS>(index) + (width::<BITS>(index) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = u64> {
        (0_u32..64).prop_flat_map(|bit| 0..=(u64::MAX >> bit))
    }

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(v in value()) {
            let i = index::<8>(v);
            prop_assert!(lower::<8>(i) <= v && v - lower::<8>(i) < width::<8>(i));
            prop_assert!(middle::<8>(i).abs_diff(v) * 2 <= width::<8>(i));
            prop_assert!(middle::<8>(i).abs_diff(v) as f64 <= v as f64 / 512.0);
        }

        #[test]
        fn a_small_value_has_the_same_bucket(v in (0_u32..31).prop_flat_map(|bit| 0..=(i32::MAX as u32 >> bit))) {
            prop_assert_eq!(index_of_small::<8>(v), index::<8>(v.into()));
            prop_assert_eq!(index_of_small::<6>(v), index::<6>(v.into()));
        }

        #[test]
        fn a_greater_value_has_no_lesser_bucket(v in value(), w in value()) {
            prop_assert_eq!(index::<6>(v) < index::<6>(w), lower::<6>(index::<6>(v)) < lower::<6>(index::<6>(w)));
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for i in 0..index::<6>(u64::MAX) {
            assert_eq!(lower::<6>(i) + width::<6>(i), lower::<6>(i + 1), "{i}");
        }
        assert_eq!(index::<8>(u64::MAX), 57 * 256 - 1);
    }
}
