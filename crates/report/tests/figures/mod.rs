//! Figures of a recording in a lab, slightly rounded.

use latpath_model::{Ns, SegmentKind};
use latpath_run::{facts::HostFacts, Manifest, Run, Stamp, State, JOURNEYS, MANIFEST};
use latpath_stats::{
    patterns::Occurrence, Bucket, ConsecutiveFigures, Loss, MachineFigures, PacingFigures, PacketAt, PathFigures,
    Pattern, PatternKind, SegmentFigures, StreamFigures, Summary, TimeFigures, ToolCost, Worst, WorstStep,
};
use std::path::Path;

const POINTS: [&str; 5] =
    ["host/nic-rx@enp7s0", "host/tx@vnet0", "host/vm-read@vnet0", "guest0/nic-rx@eth1", "guest0/app-read@relay"];

fn buckets(counts: &[(Ns, u64)]) -> Vec<Bucket> {
    counts.iter().map(|(from, count)| Bucket { from_ns: *from, to_ns: from + from / 128, count: *count }).collect()
}

fn packet_at(key: u32) -> PacketAt {
    let time_ns = 1_767_323_045_000_000_006 + i64::from(key) * 250_000;
    PacketAt { stream: "svid:MU01".into(), key, number: key.into(), time_ns }
}

fn segment(name: &str, from: usize, to: usize, times: [Ns; 9], over: u64, bound: Ns) -> SegmentFigures {
    let [min_ns, mean_ns, stddev_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns] = times;
    SegmentFigures {
        kind: SegmentKind::classic(name).unwrap_or(SegmentKind::Step),
        name: name.into(),
        from: POINTS[from].into(),
        to: POINTS[to].into(),
        times: TimeFigures {
            count: 239_987,
            min_ns,
            mean_ns,
            stddev_ns,
            p50_ns,
            p90_ns,
            p99_ns,
            p99_9_ns,
            p99_99_ns,
            max_ns,
            ..TimeFigures::default()
        },
        rate_hz: 3999.7833,
        over_threshold: over,
        in_band: None,
        close_to: Vec::new(),
        error_bound_ns: bound,
        min_at: Some(packet_at(1_207)),
        max_at: Some(packet_at(2_375)),
        histogram: buckets(&[
            (mean_ns / 2, 1200),
            (mean_ns, 230_000),
            (mean_ns * 2, 8700),
            (mean_ns * 7, 80),
            (max_ns, 7),
        ]),
    }
}

pub fn segments() -> Vec<SegmentFigures> {
    vec![
        segment(
            "Thyp",
            0,
            3,
            [98_114, 171_902, 61_220, 160_310, 238_118, 391_402, 600_711, 1_840_117, 14_201_377],
            22_310,
            1_870,
        ),
        segment("Tsub", 3, 4, [21_300, 63_700, 28_110, 58_090, 99_300, 151_020, 230_700, 410_300, 2_400_800], 371, 0),
        segment(
            "total",
            0,
            4,
            [131_990, 235_602, 68_040, 224_400, 318_022, 466_101, 741_020, 2_100_640, 14_612_008],
            162_004,
            1_870,
        ),
        segment(
            "host/nic-rx@enp7s0→host/tx@vnet0",
            0,
            1,
            [2_780, 8_010, 2_510, 7_700, 11_002, 16_117, 29_800, 88_000, 310_444],
            3,
            0,
        ),
        segment(
            "host/vm-read@vnet0→guest0/nic-rx@eth1",
            2,
            3,
            [990, 120_011, 44_010, 118_002, 171_300, 266_120, 401_020, 900_118, 9_800_019],
            9_010,
            1_870,
        ),
    ]
}

fn worst(key: u32, total: Ns, at: [Ns; 5]) -> Worst {
    let step = |i: usize| WorstStep {
        point: POINTS[i].into(),
        since_first_ns: at[i],
        since_last_ns: if i == 0 { 0 } else { at[i] - at[i - 1] },
        cpu: Some([2, 2, 3, 0, 1][i]),
        tid: Some([0, 0, 4711, 0, 815][i]),
        role: (i == 2).then(|| "vhost of relay1".into()),
    };
    let time_ns = 1_767_323_045_000_000_006 + i64::from(key) * 250_000;
    Worst {
        stream: "svid:MU01".into(),
        path: if key == 77 { "fast path" } else { "upcall" }.into(),
        key,
        time_ns,
        total_ns: total,
        steps: (0..5).map(step).collect(),
    }
}

/// Most packets take the fast path; some go through the daemon.
fn paths(journeys: u64) -> Vec<PathFigures> {
    let thyp = |count, p50_ns, max_ns| {
        let of_all = segments().into_iter().find(|s| s.name == "Thyp").unwrap();
        let times = TimeFigures { count, p50_ns, p99_ns: max_ns, p99_9_ns: max_ns, max_ns, ..of_all.times };
        SegmentFigures { times, over_threshold: count / 100, ..of_all }
    };
    let path = |name: &str, journeys, lost, segment| PathFigures {
        path: name.into(),
        journeys,
        lost,
        segments: vec![segment],
    };
    vec![
        path("fast path", journeys - 52, 2, thyp(journeys - 54, 45_002, 310_444)),
        path("upcall", 52, 11, thyp(41, 2_400_118, 14_200_555)),
    ]
}

pub fn summary() -> Summary {
    let lost = vec![
        Loss {
            place: POINTS[1].into(),
            reason: Some("FULL_RING in tun_net_xmit".into()),
            meaning: Some("tap queue full".into()),
            dropped_at: None,
            kernel_count: Some(11),
            count: 11,
        },
        Loss { place: POINTS[3].into(), reason: None, meaning: None, dropped_at: None, kernel_count: None, count: 2 },
    ];
    let stream = |name: &str, never_seen| StreamFigures {
        lans: Vec::new(),
        stream: name.into(),
        points: POINTS.iter().map(|p| p.parse().unwrap()).collect(),
        journeys: 120_000,
        complete: 119_993,
        incomplete: 0,
        lost: lost.clone(),
        duplicates: 0,
        out_of_order: 4,
        never_seen,
        consecutive: (never_seen > 0).then_some(ConsecutiveFigures {
            packets: 3,
            key: 1_201,
            number: 77_201,
            time_ns: 1_767_323_045_000_000_006,
        }),
        consecutive_over: Vec::new(),
        pacing: [(0, 3, 250_000, 412_118), (4, -12_004, 250_001, 14_611_998)]
            .map(|(point, min_ns, mean_ns, max_ns)| PacingFigures {
                point: POINTS[point].into(),
                count: 119_992,
                min_ns,
                mean_ns,
                max_ns,
            })
            .into(),
        segments: segments(),
        paths: paths(120_000),
    };
    Summary {
        lans: Vec::new(),
        deficiencies: Vec::new(),
        footnotes: Vec::new(),
        elapsed_ns: 60_000_000_000,
        threshold_ns: 200_000,
        band: None,
        durations_alone: false,
        points: POINTS.iter().map(|p| p.parse().unwrap()).collect(),
        off_route: vec!["host/nic-rx@br0".parse().unwrap()],
        reader_gaps: Vec::new(),
        journeys: 240_000,
        complete: 239_987,
        incomplete: 0,
        lost: lost.clone(),
        duplicates: 0,
        out_of_order: 4,
        malformed: 2,
        segments: segments(),
        paths: paths(240_000),
        streams: vec![stream("svid:MU01", 0), stream("svid:MU02,vlan=7", 3)],
        machines: vec![
            MachineFigures {
                machine: "guest0".into(),
                hypervisor: None,
                method: "timed exchanges".into(),
                offset_ns: -81_220_118_004_771,
                drift_ppb: 311,
                error_bound_ns: 1_870,
                exchanges: 6_012,
                causality_violations: 0,
                fault: None,
                cpu_percent: Some(1.73),
            },
            MachineFigures { machine: "host".into(), method: "same clock".into(), ..MachineFigures::default() },
        ],
        clocks: None,
        worst: vec![
            worst(2375, 14_612_008, [0, 9_100, 14_210_555, 14_331_004, 14_612_008]),
            worst(77, 2_100_640, [0, 7_700, 60_210, 180_990, 2_100_640]),
        ],
        patterns: vec![Pattern {
            kind: PatternKind::QueueRelease,
            segments: vec!["host/tx@vnet0→host/vm-read@vnet0".into(), "Thyp".into(), "total".into()],
            from: "host/tx@vnet0".into(),
            to: "host/vm-read@vnet0".into(),
            streams: vec!["svid:MU01".into(), "svid:MU02,vlan=7".into()],
            from_ns: 1_000_012_340_000_000,
            to_ns: 1_000_012_500_000_000,
            since_start_ns: 12_340_000_000,
            until_ns: 12_500_000_000,
            count: 1,
            packets: 1_280,
            size_ns: Some(160_012_000),
            occurrences: vec![Occurrence {
                from_ns: 1_000_012_340_000_000,
                to_ns: 1_000_012_500_000_000,
                size_ns: 160_012_000,
                packets: 1_280,
            }],
            text: "a queue was held for 160.0 ms, then released: 1280 packets that were sent one after the other arrived at \
                   host/vm-read@vnet0 at once"
                .into(),
            ..Pattern::default()
        }],
        without: None,
        intervals: Vec::new(),
        late: None,
        tool: ToolCost {
            sightings: 1_199_946,
            sightings_dropped: 0,
            ns_per_sighting: 83,
            cpu_percent: 3.42,
            max_rss_bytes: 31 << 20,
        },
        notes: vec!["guest0: the kernel has no BTF; its drops cannot be seen".into()],
    }
}

/// A run without journeys, for a report's lines on the host and the command.
#[allow(dead_code)]
pub fn run(directory: &Path) -> Run {
    let host = HostFacts {
        name: "relay-host".into(),
        kernel: "6.1.0-28-rt-amd64".into(),
        kernel_version: "#1 SMP PREEMPT_RT Debian 6.1.119-1".into(),
        kernel_command_line: "BOOT_IMAGE=/boot/vmlinuz-6.1.0-28-rt-amd64 root=/dev/sda2 ro isolcpus=2-5 nohz_full=2-5 rcu_nocbs=2-5 intel_idle.max_cstate=0".into(),
        architecture: "x86_64".into(),
        cpu_model: "Intel(R) Xeon(R) D-1747NTE CPU @ 2.50GHz".into(),
        is_virtual: false,
        cpus_online: "0-7".into(),
        cpus_isolated: "2-5".into(),
        cpus_nohz_full: "2-5".into(),
        governors: vec!["performance".into()],
        clocksource: "tsc".into(),
        smt: "off".into(),
        memory_bytes: 64 << 30,
        boot_id: "5f2c".into(),
    };
    let stamp = |utc: &str, ns| Stamp { utc: utc.into(), utc_ns: ns, tai_ns: ns, monotonic_ns: ns };
    let manifest = Manifest {
        format: 1,
        latpath: "0.1.0".into(),
        state: State::Finished,
        command: "latpath record --stream svid:MU01 --machine guest0=ssh:root@guest -o"
            .split(' ')
            .chain(["a run"])
            .map(String::from)
            .collect(),
        start: stamp("2026-01-02T03:04:05.000000006Z", 1_767_323_045_000_000_006),
        end: Some(stamp("2026-01-02T03:05:05.000000006Z", 1_767_323_105_000_000_006)),
        streams: vec!["svid:MU01".parse().unwrap(), "svid:MU02,vlan=7".parse().unwrap()],
        host,
        ..Manifest::default()
    };
    std::fs::create_dir(directory.join(JOURNEYS)).unwrap();
    std::fs::write(directory.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
    Run::open(directory).unwrap()
}
