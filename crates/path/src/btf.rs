//! Finds, in the kernel's type information, the functions that take an skb, and its position among their arguments.
//!
//! Parses the format in one pass (Linux: Documentation/bpf/btf.rst): of a hundred thousand types, only functions and
//! the targets of their arguments matter.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const INT: u8 = 1;
const PTR: u8 = 2;
const ARRAY: u8 = 3;
const STRUCT: u8 = 4;
const UNION: u8 = 5;
const ENUM: u8 = 6;
const VOLATILE: u8 = 9;
const CONST: u8 = 10;
const FUNC: u8 = 12;
const FUNC_PROTO: u8 = 13;
const VAR: u8 = 14;
const DATASEC: u8 = 15;
const DECL_TAG: u8 = 17;
const TYPE_TAG: u8 = 18;
const ENUM64: u8 = 19;

/// Bit n is set if argument n (from 0) is a `struct sk_buff *`.
pub(crate) type Positions = u8;

#[derive(Clone, Copy)]
struct Type {
    kind: u8,
    name: u32,
    /// The type that it refers to; for a prototype, the index of its first argument in `args`.
    to: u32,
    /// Number of members, values or arguments.
    count: u16,
}

/// The types of the kernel, or those of a module, whose numbering continues the kernel's.
pub(crate) struct Types<'a> {
    base: Option<&'a Types<'a>>,
    types: Vec<Type>,
    args: Vec<u32>,
    strings: &'a [u8],
    first_type: u32,
    first_string: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// All names in the type information; none if it is malformed.
pub(crate) fn names_in(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let field = |at| u32_at(bytes, at).map(|v| v as usize);
    let strings = || slice(bytes.get(field(4)?..)?, field(16)?, field(20)?);
    strings().unwrap_or_default().split(|b| *b == 0)
}

fn slice(bytes: &[u8], from: usize, len: usize) -> Option<&[u8]> {
    bytes.get(from..from.checked_add(len)?)
}

impl<'a> Types<'a> {
    /// Parses the types of the kernel, or of a module on top of the kernel's (`base`). `None` if they are malformed.
    pub fn read(bytes: &'a [u8], base: Option<&'a Types<'a>>) -> Option<Self> {
        if bytes.get(..2)? != MAGIC.to_ne_bytes() {
            return None;
        }
        let field = |at| u32_at(bytes, at).map(|v| v as usize);
        let body = bytes.get(field(4)?..)?;
        let (raw, strings) = (slice(body, field(8)?, field(12)?)?, slice(body, field(16)?, field(20)?)?);
        let (first_type, first_string) =
            base.map_or((1, 0), |b| (b.first_type + b.types.len() as u32, b.first_string + b.strings.len() as u32));
        let (mut types, mut args, mut at) = (Vec::new(), Vec::new(), 0);
        while at < raw.len() {
            let (name, info, mut to) = (u32_at(raw, at)?, u32_at(raw, at + 4)?, u32_at(raw, at + 8)?);
            let (kind, count) = ((info >> 24 & 0x1f) as u8, info as u16);
            at += 12;
            let n = usize::from(count);
            at += match kind {
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * n,
                ENUM => 8 * n,
                FUNC_PROTO => {
                    to = args.len() as u32;
                    for i in 0..n {
                        args.push(u32_at(raw, at + 8 * i + 4)?);
                    }
                    8 * n
                }
                _ => 0,
            };
            types.push(Type { kind, name, to, count });
        }
        Some(Self { base, types, args, strings, first_type, first_string })
    }

    fn get(&self, id: u32) -> Option<(&Types<'a>, Type)> {
        match id.checked_sub(self.first_type) {
            Some(i) => Some((self, *self.types.get(i as usize)?)),
            None => self.base?.get(id),
        }
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        match at.checked_sub(self.first_string) {
            Some(i) => self.strings.get(i as usize..)?.split(|b| *b == 0).next(),
            None => self.base?.name(at),
        }
    }

    /// Whether a type is `struct sk_buff *`, `const` or not.
    fn is_skb(&self, id: u32) -> bool {
        let Some((_, Type { kind: PTR, to, .. })) = self.get(id) else { return false };
        let mut id = to;
        // A pointer leads to its target in a few steps; the limit prevents endless loops.
        for _ in 0..8 {
            match self.get(id) {
                Some((_, Type { kind: CONST | VOLATILE | TYPE_TAG, to, .. })) => id = to,
                Some((_, Type { kind: STRUCT, name, .. })) => return self.name(name) == Some(b"sk_buff"),
                _ => return false,
            }
        }
        false
    }

    fn positions(&self, prototype: u32) -> Positions {
        let Some((owner, Type { kind: FUNC_PROTO, to, count, .. })) = self.get(prototype) else { return 0 };
        let args = slice_of(&owner.args, to, count);
        let skb = |(i, id): (usize, &u32)| if self.is_skb(*id) { 1 << i } else { 0 };
        args.iter().take(5).enumerate().map(skb).fold(0, |all, one| all | one)
    }

    /// The functions with an skb among their first five arguments.
    pub fn skb_functions(&self) -> HashMap<String, Positions> {
        let mut found = HashMap::new();
        for t in self.types.iter().filter(|t| t.kind == FUNC) {
            let positions = self.positions(t.to);
            if let Some(name) = self.name(t.name).filter(|_| positions != 0) {
                *found.entry(String::from_utf8_lossy(name).into_owned()).or_default() |= positions;
            }
        }
        found
    }
}

fn slice_of(args: &[u32], from: u32, count: u16) -> &[u32] {
    let from = from as usize;
    args.get(from..from + usize::from(count)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds type information like pahole's from each type's kind, name, reference and arguments.
    fn btf(types: &[(u8, u32, u32, &[u32])], strings: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        for (kind, name, to, args) in types {
            let info = u32::from(*kind) << 24 | args.len() as u32;
            [*name, info, *to].iter().for_each(|v| raw.extend(v.to_ne_bytes()));
            args.iter().for_each(|id| [0, *id].iter().for_each(|v| raw.extend(v.to_ne_bytes())));
        }
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let words = [24, 0, raw.len() as u32, raw.len() as u32, strings.len() as u32];
        words.iter().for_each(|v| bytes.extend(v.to_ne_bytes()));
        bytes.extend(raw);
        bytes.extend(strings);
        bytes
    }

    // Offsets of the names: 1 sk_buff, 9 sock, 14 f, 16 g.
    const STRINGS: &[u8] = b"\0sk_buff\0sock\0f\0g\0";

    #[test]
    fn functions_are_found_by_their_skbs_in_any_position() {
        let bytes = btf(
            &[
                (STRUCT, 1, 0, &[]),
                (PTR, 0, 1, &[]),
                (STRUCT, 9, 0, &[]),
                (PTR, 0, 3, &[]),
                (CONST, 0, 1, &[]),
                (PTR, 0, 5, &[]),
                (FUNC_PROTO, 0, 0, &[4, 2, 4, 6]),
                (FUNC, 14, 7, &[]),
                (FUNC_PROTO, 0, 0, &[4, 4]),
                (FUNC, 16, 9, &[]),
            ],
            STRINGS,
        );
        let found = Types::read(&bytes, None).unwrap().skb_functions();
        assert_eq!(found, HashMap::from([("f".to_string(), 0b1010)]));
        assert!(names_in(&bytes).any(|n| n == b"sock") && !names_in(&bytes).any(|n| n == b"soc"));
    }

    #[test]
    fn a_modules_function_may_have_a_prototype_of_the_kernels() {
        let kernel = btf(&[(STRUCT, 1, 0, &[]), (PTR, 0, 1, &[]), (FUNC_PROTO, 0, 0, &[2])], STRINGS);
        let kernel = Types::read(&kernel, None).unwrap();
        let module = btf(&[(FUNC, STRINGS.len() as u32, 3, &[])], b"ovs_f\0");
        let module = Types::read(&module, Some(&kernel)).unwrap();
        assert_eq!(module.skb_functions(), HashMap::from([("ovs_f".to_string(), 1)]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            types in proptest::collection::vec((0u8..20, 0u32..40, 0u32..40, proptest::collection::vec(0u32..40, 0..6)), 0..40),
            cut in 0usize..400,
        ) {
            let types: Vec<_> = types.iter().map(|(k, n, t, a)| (*k, *n, *t, &a[..])).collect();
            let mut bytes = btf(&types, STRINGS);
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some(types) = Types::read(&bytes, None) {
                types.skb_functions();
            }
        }
    }
}
