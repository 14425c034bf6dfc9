//! An agent that invents sightings, 4,000 packets a second at three points, and so needs no rights and no packets. Tests run
//! it to see what a dying agent does to its host. It speaks over standard input and output, or `fake-agent device PATH`.
//! `fake-agent die-after N` ends without a word when it has reported N packets; `fake-agent refuse WHY` cannot attach its probe.

use latpath_agent::{listen, Listen, ServeOptions, StartRequest};
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, Sighting, Source};

struct Invented {
    next: u32,
    began: Ns,
    last: u32,
}

impl Source for Invented {
    type Error = String;

    fn points(&mut self) -> Result<Vec<PointInfo>, String> {
        let point = |kind, device: &str| PointInfo {
            point: Point { machine: "self".into(), kind, device: device.into() },
            link: Link::Nic,
            netns: 1,
            ifindex: 2,
            peer: 0,
            clock: "monotonic".into(),
        };
        Ok(vec![point(PointKind::NicRx, "eth1"), point(PointKind::Tx, "eth1"), point(PointKind::AppRead, "relay")])
    }

    fn drop_notes(&mut self) -> Result<Vec<DropNote>, String> {
        Ok(vec![])
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Result<Ns, String> {
        // What was reported before is written by now.
        if self.next >= self.last {
            eprintln!("out of luck");
            std::process::abort();
        }
        let now = monotonic();
        loop {
            let t = self.began + Ns::from(self.next) * 250_000;
            if t + 100_000 >= now {
                return Ok(t);
            }
            let seen =
                |point| Sighting { t: t + Ns::from(point) * 20_000, key: self.next, point, ..Sighting::default() };
            out.extend([seen(0), seen(1), seen(2)]);
            self.next += 1;
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        Ok(Counters { sightings: u64::from(self.next) * 3, ..Counters::default() })
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (mut refusal, mut at, mut last) = (None, Listen::Stdio, u32::MAX);
    match args[..] {
        [] => {}
        ["die-after", packets] => last = packets.parse().expect("packets"),
        ["device", path] => at = Listen::Device(path.into()),
        ["refuse", why] => refusal = Some(why.to_string()),
        _ => panic!("fake-agent [device PATH | die-after N | refuse WHY]"),
    }
    let make = move |_: &StartRequest| match refusal {
        Some(why) => Err(why),
        None => Ok(Invented { next: 0, began: monotonic(), last }.into()),
    };
    let mut log = |line: &str| eprintln!("fake-agent: {line}");
    if let Err(e) = listen(&at, at == Listen::Stdio, &mut ServeOptions::default(), None, &mut log, make) {
        eprintln!("fake-agent: {e}");
        std::process::exit(1);
    }
}
