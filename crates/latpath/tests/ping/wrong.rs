//! Errors reported before anything is sent, each with the next step.

use crate::link::is;
use latpath_testkit::latpath;
use latpath_testkit::{equal, trial, Failed, Trial};

pub fn tests() -> Vec<Trial> {
    vec![
        trial("wrong_usage_is_refused_with_the_next_step", &[], usage),
        trial("an_address_or_port_that_is_not_free_is_named", &[], taken),
    ]
}

fn says(words: &str) -> Result<(Option<i32>, String), Failed> {
    let output = latpath(words).output()?;
    equal(words, output.stdout.len(), 0)?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn usage() -> Result<(), Failed> {
    let cases = [
        ("emit", "<HOST>"),
        ("emit 10.0.0", "write an address, e.g. 10.0.0.2"),
        ("emit fe80::1", "fe80::1 is an address of one link; name the device that leads to it: -i eth0, or fe80::1%eth0"),
        ("emit fe80::1%lp-none", "lp-none: no such device"),
        ("emit 10.0.0.2 --size 31", "a message has 32 to 65507 bytes"),
        ("emit 10.0.0.2 --size 65508", "a message has 32 to 65507 bytes"),
        ("emit 10.0.0.2 --rate 0", "not a rate"),
        ("emit 10.0.0.2 --rate 5 --flood", "cannot be used with"),
        ("emit 10.0.0.2 --count 0", "--count"),
        ("emit 10.0.0.2 --timeout 0s", "--timeout 0s: a time above 0 is needed"),
        ("emit 10.0.0.2 --lost-after 0s", "--lost-after 0s: a time above 0 is needed"),
        ("emit 10.0.0.2 --source fd00::1", "--source fd00::1: 10.0.0.2:6185 needs an IPv4 address"),
        ("emit 10.0.0.2 --keep-going", "--threshold"),
        ("emit 10.0.0.2 --threshold 100", "--threshold"),
        ("emit 10.0.0.2 --bucket 1ns --overflow 1s", "more than 1000000 buckets"),
        ("emit 10.0.0.2 --dscp 64", "--dscp"),
        (
            "emit 10.0.0.2 --limit round_trip:p50<=1ms --limit processing:max<=1ms --limit turn:max<=1ms",
            "\"turn\": no such segment (there can be: round_trip, nic_round_trip, nic_turnaround; or a part of the table",
        ),
        ("emit 10.0.0.2 --limit malformed<=0", "malformed<=0: malformed is not measured here"),
        ("emit 10.0.0.2 --limit pacing:max<=1s", "pacing is not measured here"),
        ("emit 10.0.0.2 --limit round_trip:over<=0", "over is not measured here"),
        ("reflect --port 70000", "--port"),
        ("reflect --keep-going", "--threshold"),
    ];
    for (words, error) in cases {
        let (code, said) = says(&format!("ping {words}"))?;
        equal(words, code, Some(2))?;
        is(&format!("{words}: {error:?} in {said}"), said.contains(error))?;
    }
    Ok(())
}

fn taken() -> Result<(), Failed> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let port = socket.local_addr()?.port();
    let (code, said) = says(&format!("ping reflect --bind 127.0.0.1 --port {port}"))?;
    equal("exit code", code, Some(1))?;
    let error = format!(
        "latpath: 127.0.0.1:{port}: another program listens there already; stop it, or take another with --port"
    );
    is(&said, said.contains(&error))?;
    let (code, said) = says("ping reflect --bind 192.0.2.77")?;
    equal("exit code", code, Some(1))?;
    is(&said, said.contains("192.0.2.77: not an address of this machine; ip -br address lists those that are"))
}
