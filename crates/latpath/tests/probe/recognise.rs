//! Streams are recognised exactly, in every valid form of a frame.

use crate::*;
use latpath_protocols::{goose, protocol::FrameLink, ProtocolId};
use latpath_testkit::{bench, trial, Lack};

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("every_length_of_svid_is_read_tagged_and_untagged", needs, every_length),
        trial("streams_of_any_asdu_of_a_frame_are_found", needs, any_asdu),
        trial("sixty_four_streams_are_distinguished", needs, many_streams),
        trial("filters_on_appid_vlan_and_mac_hold", needs, filters),
        trial("near_misses_are_not_taken", needs, near_misses),
        trial("udp_and_hash_keys_are_the_same_at_every_point", needs, other_keys),
        trial("goose_and_ptp_are_seen_at_every_point", needs, goose_and_ptp),
        trial("the_kernel_counts_as_many_frames_as_the_device", needs, against_the_devices_counters),
        trial("two_probes_at_once_see_the_same", needs, two_probes),
        trial(
            "loading_the_programs_is_little_work_for_the_verifier",
            &[needs, &[counts_its_work()]].concat(),
            little_work,
        ),
    ]
}

/// Field of a program's fdinfo with the number of instructions that the verifier processed, from Linux 5.16 on.
const WORK: &str = "verified_insns:";

fn counts_its_work() -> Lack {
    let release = latpath_linux::proc::kernel_release();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.parse().ok()).collect();
    (numbers < vec![5, 16]).then(|| format!("needs Linux 5.16, which says {WORK}"))
}

/// Limits the work of the verifier, which is most of the CPU time at start-up. The work multiplies if a part of a
/// program is not a separate function.
fn little_work() -> Result<(), Failed> {
    let of_each_kind = ProtocolId::ALL.iter().map(|protocol| protocol.info().example);
    let streams = of_each_kind.map(str::parse).collect::<Result<_, _>>()?;
    let _probe = Probe::attach(ProbeOptions::new("here", streams))?;
    // Other tests may load the same programs at the same time; the maximum stays the same.
    let texts = fs::read_dir("/proc/self/fdinfo")?.flatten().filter_map(|f| fs::read_to_string(f.path()).ok());
    let work = |text: String| text.lines().find_map(|l| l.strip_prefix(WORK)?.trim().parse::<u32>().ok());
    let work: Vec<u32> = texts.filter_map(work).collect();
    println!("{work:?} instructions");
    match work.iter().max() {
        None => Err(format!("no program says {WORK}").into()),
        Some(most) if *most > 60_000 => Err(format!("{most} instructions were followed for one program").into()),
        Some(_) => Ok(()),
    }
}

fn every_length() -> Result<(), Failed> {
    let bench = bench()?;
    // One svID for each length from 1 to 129 bytes, tested in groups.
    let names: Vec<String> = (1..=129).map(|n| format!("{:-<n$}", n % 10)).collect();
    let mut frames = Vec::new();
    let mut want = Vec::new();
    for (i, name) in names.iter().enumerate() {
        for (spec, n) in [(frame(name, i as u16), i), (tagged(frame(name, 1000 + i as u16), 7), 1000 + i)] {
            frames.push(bytes(&spec));
            want.push((i as u16, n as u32));
        }
    }
    let streams = names.iter().map(|n| StreamSpec::svid(n)).collect();
    let seen = record(&bench, streams, &frames)?;
    expect_everywhere(&seen, &want)?;
    assert_eq!(seen.counters.malformed, 0);
    Ok(())
}

fn any_asdu() -> Result<(), Failed> {
    let bench = bench()?;
    let mut frames = Vec::new();
    let mut want = Vec::new();
    for asdus in 1..=8_u16 {
        for tag in [false, true] {
            let mut spec = frame("first", asdus * 10);
            spec.asdus = (0..asdus)
                .map(|i| AsduSpec {
                    svid: if i + 1 == asdus { "last".into() } else { "first".into() },
                    smp_cnt: asdus * 10 + i,
                    dat_set: tag.then(|| "a data set".into()),
                    smp_rate: tag.then_some(80),
                    refr_tm: tag.then_some([9; 8]),
                    ..spec.asdus[0].clone()
                })
                .collect();
            frames.push(bytes(&if tag { tagged(spec, 3) } else { spec }));
            if asdus > 1 {
                want.push((0, u32::from(asdus) * 10));
            }
            want.push((1, u32::from(asdus * 10 + asdus - 1)));
        }
    }
    let seen = record(&bench, streams(&["svid:first", "svid:last"]), &frames)?;
    expect_everywhere(&seen, &want)
}

fn many_streams() -> Result<(), Failed> {
    let bench = bench()?;
    let names: Vec<String> = (0..200).map(|i| format!("MU{i:03}")).collect();
    let mut frames = Vec::new();
    let mut want = Vec::new();
    for count in 0..5_u16 {
        for (i, name) in names.iter().enumerate() {
            frames.push(bytes(&frame(name, count)));
            want.push((i as u16, u32::from(count)));
        }
    }
    let seen = record(&bench, names.iter().map(|n| StreamSpec::svid(n)).collect(), &frames)?;
    expect_everywhere(&seen, &want)
}

fn filters() -> Result<(), Failed> {
    let bench = bench()?;
    let mut other_appid = frame("A", 3);
    other_appid.appid = 0x4001;
    let mut other_mac = frame("A", 4);
    other_mac.link.dst = Some([1, 12, 205, 4, 0, 9]);
    let frames: Vec<_> = [frame("A", 1), tagged(frame("A", 2), 7), other_appid, other_mac, tagged(frame("A", 5), 8)]
        .iter()
        .map(bytes)
        .collect();
    let asked = [
        "svid:A",
        "svid:A,vlan=7",
        "svid:A,appid=0x4001",
        "svid:A,mac=01:0c:cd:04:00:09",
        "svid:A,vlan=8,appid=0x4001",
    ];
    let seen = record(&bench, streams(&asked), &frames)?;
    expect_everywhere(&seen, &[(0, 1), (0, 2), (1, 2), (0, 3), (2, 3), (0, 4), (3, 4), (0, 5)])
}

fn near_misses() -> Result<(), Failed> {
    let bench = bench()?;
    // Permutations, prefixes, longer names, and padding with NUL: the sum of the bytes would not distinguish all of
    // them.
    let near = ["MU10", "UM01", "MU0", "MU011", "mu01", "MU01\0", "\0MU01"];
    let mut frames: Vec<_> = near.iter().map(|n| bytes(&frame(n, 1))).collect();
    frames.push(bytes(&frame("MU01", 2)));
    let seen = record(&bench, streams(&["svid:MU01"]), &frames)?;
    expect_everywhere(&seen, &[(0, 2)])
}

/// A UDP packet in an Ethernet frame.
pub fn udp(payload: &[u8], port: u16, v6: bool) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
    let len = payload.len() as u16 + 8;
    if v6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(len.to_be_bytes());
        f.extend([17, 64]);
        f.extend([0xfd; 16]);
        f.extend([0xfe; 16]);
    } else {
        f.extend([8, 0, 0x45, 0]);
        f.extend((len + 20).to_be_bytes());
        f.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        // A bridge drops an IPv4 packet with a wrong header checksum (RFC 791, 3.1).
        let word = |i: usize| u32::from(u16::from_be_bytes([f[i], f[i + 1]]));
        let sum: u32 = (14..34).step_by(2).map(word).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        f[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    f.extend(4000_u16.to_be_bytes());
    f.extend(port.to_be_bytes());
    f.extend(len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    f
}

fn other_keys() -> Result<(), Failed> {
    let bench = bench()?;
    let mut frames = Vec::new();
    for i in 0..50_u32 {
        let mut payload = vec![0xaa; 100];
        payload[4..8].copy_from_slice(&(i * 70_000).to_be_bytes());
        frames.extend([udp(&payload, 5000, false), udp(&payload, 5001, true), udp(&payload, 9, false)]);
        frames.push(bytes(&frame("H", i as u16)));
    }
    let asked = [
        "udp:10.0.0.1:4000>10.0.0.2:5000,seq=4:4",
        "udp::5001,hash=0:32",
        "svid:H,hash=0:80",
        "ether:0x88ba,hash=0:80",
        "udp:10.0.0.3:5000,hash=0:8",
    ];
    let seen = record(&bench, streams(&asked), &frames)?;
    let keys = seen.keys();
    let first = &keys[LINE[0]];
    for point in LINE {
        assert_eq!(&keys[point], first, "{point}");
    }
    let of = |stream| first.iter().filter(|(s, _)| *s == stream).map(|(_, k)| *k).collect::<Vec<_>>();
    assert_eq!(of(0), (0..50).map(|i| i * 70_000).collect::<Vec<_>>());
    for stream in [1, 2, 3] {
        let mut hashes = of(stream);
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 50, "stream {stream}: a packet has a hash of its own");
    }
    assert_eq!(of(2), of(3), "the payload of an SV frame begins at its APPID, however the stream was named");
    assert!(of(4).is_empty());
    Ok(())
}

fn goose_and_ptp() -> Result<(), Failed> {
    let bench = bench()?;
    let (trip, close) = (own("trip"), own("close"));
    let mut frames = Vec::new();
    for i in 0..20_u16 {
        for goid in [&trip, &close] {
            let message =
                goose::Frame { goid: Some(goid.as_bytes()), st_num: 7, sq_num: i.into(), ..Default::default() };
            frames.push(message.build(&FrameLink::default())?);
        }
        let mut message = [0; 44];
        (message[1], message[3]) = (2, 44);
        message[30..32].copy_from_slice(&i.to_be_bytes());
        frames.push([&[1, 12, 205, 4, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0xf7], &message[..], &[0; 2]].concat());
    }
    let asked = [&format!("goose:{trip}"), "ptp:sync", "ptp:delay_req"];
    let seen = record(&bench, streams(&asked), &frames)?;
    let keys = seen.keys();
    for point in LINE {
        let of = |stream| keys[point].iter().filter(|(s, _)| *s == stream).map(|(_, k)| *k).collect::<Vec<_>>();
        assert_eq!(of(0), (0..20).map(|sq| goose::key(7, sq)).collect::<Vec<_>>(), "{point}");
        assert_eq!(of(1), (0..20).collect::<Vec<_>>(), "{point}");
        assert!(of(2).is_empty());
    }
    Ok(())
}

fn against_the_devices_counters() -> Result<(), Failed> {
    let bench = bench()?;
    let before = bench.path.hypervisor.counters_of("nic0")?;
    let frames: Vec<_> = (0..20_000).map(|i| bytes(&frame(&own("counted"), (i % 4000) as u16))).collect();
    let seen = record(&bench, vec![StreamSpec::svid(&own("counted"))], &frames)?;
    let passed = bench.path.hypervisor.counters_of("nic0")?.since(&before).rx_packets;
    let want: Vec<_> = (0..20_000).map(|i| (0, i % 4000)).collect();
    expect_everywhere(&seen, &want)?;
    assert_eq!(passed, 20_000);
    assert_eq!((seen.counters.dropped, seen.counters.malformed), (0, 0));
    assert_eq!(seen.counters.sightings as usize, seen.sightings.len());
    assert!(seen.sightings.windows(2).all(|w| w[0].t <= w[1].t), "sightings come in order of time");
    Ok(())
}

fn two_probes() -> Result<(), Failed> {
    let bench = bench()?;
    let other = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&own("two"))]))?;
    let frames: Vec<_> = (0..500).map(|i| bytes(&frame(&own("two"), i))).collect();
    let first = record(&bench, vec![StreamSpec::svid(&own("two"))], &frames)?;
    let other = seen(&bench, other, |_| true)?;
    assert_eq!(other.sightings.len(), first.sightings.len());
    Ok(())
}
