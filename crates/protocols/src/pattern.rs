//! Patterns: `svid:MU*` selects all streams whose names match.

use crate::stream::StreamSpec;

/// Whether `name` matches a pattern in which each `*` matches any number of bytes.
pub fn fits(pattern: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> bool {
    let (pattern, name) = (pattern.as_ref(), name.as_ref());
    let mut parts = pattern.split(|b| *b == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let found = (0..=rest.len()).find(|at| rest[*at..].starts_with(part));
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

impl StreamSpec {
    /// Whether the stream's name contains a `*`.
    pub fn is_pattern(&self) -> bool {
        self.matcher.kernel().name.is_some_and(|name| name.contains(&b'*'))
    }

    /// Returns the stream to follow if a stream seen on the wire matches this pattern: it has the name that was seen,
    /// and the pattern's filters and key.
    pub fn choose(&self, seen: &StreamSpec) -> Option<StreamSpec> {
        let (asked, has) = (self.matcher.kernel(), seen.matcher.kernel());
        let own = asked.protocol_bytes.bytes();
        let filtered = own.iter().any(|b| *b != 0);
        let chosen = self.matcher.protocol() == seen.matcher.protocol()
            && fits(asked.name?, has.name?)
            && (!filtered || own == has.protocol_bytes.bytes())
            && self.link.vlan.is_none_or(|vlan| vlan == seen.link.vlan.unwrap_or(0))
            && self.link.dst.is_none_or(|mac| seen.link.dst == Some(mac));
        let matcher = if filtered { seen.matcher.clone() } else { seen.matcher.by_name() };
        chosen.then_some(StreamSpec { matcher, link: self.link, key: self.key, reaction: None })
    }

    /// This pattern reduced to the stream's name, for protocols that have names.
    pub fn by_name(&self) -> StreamSpec {
        StreamSpec::new(self.matcher.by_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> StreamSpec {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_selects_streams_by_name_and_filters() {
        let seen = spec("svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01");
        let chosen = |pattern: &str| spec(pattern).choose(&seen).map(|s| s.to_string());
        assert_eq!(chosen("svid:MU*"), Some("svid:MU01".into()));
        assert_eq!(chosen("svid:*"), Some("svid:MU01".into()));
        assert_eq!(chosen("svid:*U*1,vlan=7,seq=0:2"), Some("svid:MU01,vlan=7,seq=0:2".into()));
        assert_eq!(chosen("svid:M*,appid=0x4000"), Some("svid:MU01,appid=0x4000".into()));
        for other in ["svid:MU*,vlan=8", "svid:MU*2", "svid:*,appid=0x4001", "goose:*", "svid:*,mac=01:0c:cd:04:00:02"]
        {
            assert_eq!(chosen(other), None, "{other}");
        }
        assert_eq!(seen.by_name(), spec("svid:MU01"));
        assert!(spec("goose:*").is_pattern() && !spec("ether:0x88ba").is_pattern() && !seen.is_pattern());
    }

    #[test]
    fn the_text_between_stars_must_come_in_order() {
        for (pattern, text, yes) in [
            ("host/*@eth*", "host/nic-rx@eth0", true),
            ("host/tx@vnet0", "host/tx@vnet01", false),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern, text), yes, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_made_of_a_name_matches_it(name in "[ab]{0,12}", holes in prop::collection::vec((0..13usize, 0..4usize), 0..4)) {
            let mut pattern = name.clone().into_bytes();
            for (at, len) in holes {
                let at = at.min(pattern.len());
                let end = (at + len).min(pattern.len());
                pattern.splice(at..end, [b'*']);
            }
            prop_assert!(fits(&pattern, &name));
            prop_assert!(!fits([&pattern[..], b"c"].concat(), &name));
        }
    }
}
