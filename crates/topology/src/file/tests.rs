//! Topology files: valid ones, and the errors for invalid ones.

use super::*;

fn parse(text: &str) -> Result<Topology> {
    Topology::parse("t.toml".as_ref(), text)
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// A topology of this way, with additional keys.
fn of(way: &str, top: &str, further: &str) -> String {
    format!("name = 't'\nway = '{way}'\n{top}\n[uplink]\ndevice = 'eno1'\n{further}\n[[guest]]\nname = 'relay'\n")
}

#[test]
fn each_example_is_a_topology_of_its_way() {
    for way in Way::ALL {
        let topology = parse(&crate::example(way)).unwrap();
        assert_eq!((topology.way, topology.guests.len()), (way, 1));
        // The keys that are commented out must be valid too.
        let text = crate::example(way);
        let is_key = |line: &&str| line.starts_with("# ") && (line.contains(" = ") || line.starts_with("# ["));
        let keys: Vec<&str> = text.lines().filter(is_key).map(|line| &line[2..]).collect();
        let skipped = |line: &&&str| line.starts_with("domain") || line.contains(": ") && !line.contains('#');
        let uncommented = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(key) if keys.contains(&key) && !skipped(&&key) => key,
            _ => line,
        });
        let text = uncommented.collect::<Vec<_>>().join("\n");
        let whole = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(whole.vlan.is_some() && whole.guests[0].qemu.is_some() && whole.uplink.cable.is_some(), "{text}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let text = "name = 't'\nway = 'bridge'\n[uplink]\ndevice = 'eno1'\nspeed = 5\n[[guest]]\nname = 'a'\n";
    let error = refused(text);
    assert!(error.starts_with("t.toml:5: unknown field `speed`"), "{error}");
    let error = refused("name = 't'\nway = 'brigde'\n");
    assert!(error.starts_with("t.toml:2: unknown variant `brigde`"), "{error}");
    let error = refused("name = 't'\nway = ");
    assert!(error.starts_with("t.toml:2: "), "{error}");
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    for (text, words) in [
        (of("bridge", "mtu = 5", ""), "mtu: an MTU is"),
        (of("bridge", "namespace = 'a/b'", ""), "namespace: \"a/b\""),
        (of("bridge", "", "[xdp]\nmode = 'native'"), "xdp: the way is bridge"),
        (of("bridge", "", "[bridge]\nname = 'eno1'"), "the bridge's name: another device"),
        (of("bridge", "", "[vlan]\nid = 4095\ntagged_by = 'host'"), "vlan.id"),
        (of("macvtap", "", "") + "queues = 0\n", "guest.relay.queues"),
        (of("macvtap", "", "") + "mac = '01:00:5e:00:00:01'\n", "guest.relay.mac"),
        (of("macvtap", "", "") + "mac = '2:0:0:0:0:1'\n", "guest.relay.mac"),
        (of("macvtap", "", "") + "tap = 'sixteen-letters-'\n", "guest.relay.tap"),
        (of("macvtap", "", "") + "domain = 'a'\n[guest.qemu]\n", "guest.relay.domain"),
        (of("macvtap", "", "") + "[guest.qemu]\nqueue_size = 300\n", "guest.relay.qemu.queue_size"),
        (of("xdp", "", "") + "[[guest]]\nname = 'two'\n", "carries one guest"),
        (of("macvtap", "", "[macvtap]\nmode = 'passthru'") + "[[guest]]\nname = 'two'\n", "carries one guest"),
        (of("bridge", "", "") + "[[guest]]\nname = 'relay'\ntap = 'x'\n", "two guests are named relay"),
        ("name = 't'\nway = 'xdp'\n[uplink]\ndevice = 'eno1'\n".into(), "at least one [[guest]]"),
    ] {
        let error = refused(&text);
        assert!(error.contains(words), "{error}, not {words}");
    }
}

#[test]
fn a_guest_has_the_same_address_on_every_start() {
    let topology = parse(&of("bridge", "", "")).unwrap();
    let [guest] = &topology.guests[..] else { panic!("one guest") };
    assert_eq!((guest.tap(), guest.queues), ("tap-relay".to_owned(), 1));
    assert_eq!(guest.mac(), parse(&of("xdp", "", "")).unwrap().guests[0].mac());
    assert_eq!(&guest.mac()[..3], [0x52, 0x54, 0]);
}
