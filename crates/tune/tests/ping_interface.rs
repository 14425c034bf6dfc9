//! Compares the profile `ping-interface`, on mlx5 and ice NICs in a folder, with the list in rant's config.sh
//! (github.com/perftool-incubator/rant, eea4297), item by item.

mod common;

use common::{differences, lay_out, snapshot, variables};
use latpath_settings::Setting;
use latpath_testkit::machine_folder::MachineFolder;
use latpath_testkit::machine_nics::{FolderNic, ICE, MLX5};
use latpath_tune::{plan, Applied, ApplyOptions, Effect, Machine, Plan, Planned, Profile, Tuning, Variables, Watch};
use latpath_undo::Journal;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

const NIC: &str = "eth1";

struct Bench {
    folder: TempDir,
    journal: TempDir,
    machine: Machine,
}

impl Bench {
    fn new(nic: FolderNic) -> Self {
        let (folder, journal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let machine = lay_out(folder.path());
        let files = MachineFolder::at(folder.path());
        nic.lay_out(&files, NIC);
        // An interrupt of a disk, which the kernel manages, and one that can be moved to other CPUs.
        for (number, handler, cpu) in [(80, "nvme0q3", "2"), (81, "xhci_hcd", "3")] {
            files.write(&format!("proc/irq/{number}/smp_affinity_list"), cpu);
            files.write(&format!("proc/irq/{number}/effective_affinity_list"), cpu);
            files.write(&format!("proc/irq/{number}/{handler}/name"), "");
            files.kernel_thread(200 + number, &format!("irq/{number}-{handler}"), 1, 50);
        }
        for slice in ["system.slice", "user.slice"] {
            files.write(&format!("sys/fs/cgroup/{slice}/cpuset.cpus"), "0-3");
        }
        Self { folder, journal, machine }
    }

    fn variables(words: &[(&str, &str)]) -> Variables {
        Variables {
            interfaces: vec![NIC.into()],
            isolated: None,
            irq_cpu: Some(2),
            app_cpu: Some(3),
            other: words.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..variables()
        }
    }

    fn plan(&self, words: &[(&str, &str)]) -> Plan {
        plan(&Profile::named("ping-interface").unwrap(), &Self::variables(words), &self.machine.again()).unwrap()
    }

    fn tuning(&self) -> Tuning<'_> {
        Tuning::new(&self.machine, Journal::at(&self.journal.path().join("journal")))
    }

    fn apply(&self, plan: &Plan) -> Applied {
        let mut driver = Driver(self.folder.path().into());
        let stop = AtomicBool::new(false);
        self.tuning().apply(plan, &mut driver, ApplyOptions::default(), &stop, &mut |_| ()).unwrap()
    }

    fn read(&self, path: &str) -> String {
        let path = self.folder.path().join(path.replace("NIC", NIC));
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
    }
}

/// Simulates a driver that resets the affinity of the device's interrupts when its queues change, as mlx5 and ice do.
struct Driver(PathBuf);

impl Watch for Driver {
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, step: &Planned) -> Result<Option<Effect>, String> {
        if step.setting == Setting::DeviceChannels {
            for number in FolderNic::irqs() {
                fs::write(self.0.join(format!("proc/irq/{number}/smp_affinity_list")), "0-3\n").unwrap();
            }
        }
        Ok(None)
    }
}

const PEER: (&str, &str) = ("peer", "192.168.1.11 02:00:00:00:00:11");
const ADDRESS: (&str, &str) = ("address", "192.168.1.10/24");

/// Files of a device (with NIC in their paths) or of the machine, with the values that config.sh sets for any driver.
const ITEMS: &[(&str, &str)] = &[
    ("sys/fs/selinux/avc/cache_threshold", "8192"),
    ("proc/sys/net/core/busy_poll", "60"),
    ("proc/sys/net/core/busy_read", "60"),
    ("proc/sys/net/core/gro_normal_batch", "1"),
    ("proc/sys/net/core/netdev_budget", "300"),
    ("proc/sys/net/core/netdev_budget_usecs", "2000"),
    ("sys/class/net/NIC/netlink/namespace", "ping-eth1"),
    ("sys/class/net/NIC/ethtool/channels", "combined 1\nmax combined"),
    ("sys/class/net/NIC/ethtool/rings", "rx 64 tx 128\nmax rx 8192 tx 8192"),
    ("sys/class/net/NIC/ethtool/pause", "autoneg off rx off tx off"),
    ("sys/class/net/NIC/napi_defer_hard_irqs", "0"),
    ("sys/class/net/NIC/gro_flush_timeout", "0"),
    ("sys/class/net/NIC/netlink/state", "up"),
    ("sys/class/net/NIC/netlink/addresses", "192.168.1.10/24"),
    ("sys/class/net/NIC/netlink/qdisc", "noqueue"),
    ("sys/class/net/NIC/netlink/multicast", "off"),
    ("sys/class/net/NIC/netlink/neighbours", "192.168.1.11 02:00:00:00:00:11"),
    ("proc/sys/net/ipv6/conf/NIC/disable_ipv6", "1"),
    ("proc/sys/net/ipv4/conf/NIC/arp_ignore", "1"),
    ("proc/sys/net/ipv4/conf/NIC/arp_announce", "2"),
    ("proc/sys/net/ipv4/conf/NIC/accept_redirects", "0"),
    ("proc/sys/net/ipv4/conf/NIC/send_redirects", "0"),
    ("proc/sys/net/ipv4/conf/NIC/accept_source_route", "0"),
    ("proc/sys/net/ipv4/conf/NIC/rp_filter", "0"),
    ("sys/class/net/NIC/device/power/control", "on"),
    ("sys/class/net/NIC/device/d3cold_allowed", "0"),
    ("sys/class/net/NIC/device/link/l1_aspm", "0"),
    ("sys/class/net/NIC/device/link/l1_2_aspm", "0"),
    ("sys/class/net/NIC/netlink/clock-sync", "system-to-nic"),
    ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance"),
    ("sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "n/a"),
    ("sys/fs/cgroup/system.slice/cpuset.cpus", "0-1"),
    ("sys/fs/cgroup/user.slice/cpuset.cpus", "0-1"),
    // Movable interrupts are moved off the two CPUs.
    ("proc/irq/81/smp_affinity_list", "0-1"),
    ("proc/irq/60/smp_affinity_list", "2"),
    ("proc/irq/63/smp_affinity_list", "2"),
];

fn check_all(bench: &Bench) {
    for (path, value) in ITEMS {
        assert!(bench.read(path).starts_with(value), "{path}: {}, not {value}", bench.read(path));
    }
    for (feature, value) in [
        ("rx-checksum", "off"),
        ("tx-checksum-ipv4", "off"),
        ("tx-checksum-ipv6", "off"),
        ("rx-lro", "off"),
        ("rx-gro", "off"),
        ("tx-tcp-segmentation", "off"),
        ("tx-generic-segmentation", "off"),
    ] {
        let features = bench.read("sys/class/net/NIC/ethtool/features");
        assert!(features.contains(&format!("{feature} {value}")), "{feature}: {features}");
    }
    // Of the fields in proc_pid_stat(5), policy and real-time priority.
    let scheduling = |tid: u32| {
        let text = bench.read(&format!("proc/{tid}/stat"));
        let fields: Vec<String> = text.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
        (fields[41 - 3].clone(), fields[40 - 3].clone())
    };
    let (fifo, other) = ("1".to_owned(), "0".to_owned());
    for number in FolderNic::irqs() {
        assert_eq!(scheduling(200 + number), (fifo.clone(), "50".into()), "thread of interrupt {number}");
    }
    assert_eq!(scheduling(280), (other, "0".into()), "the thread of a disk's managed interrupt");
    assert_eq!(scheduling(315), (fifo, "11".into()), "ksoftirqd/2");
}

fn applied_and_undone(nic: FolderNic, of_driver: &[(&str, &str)]) {
    let bench = Bench::new(nic);
    let before = snapshot(bench.folder.path());
    let words = [ADDRESS, PEER, ("busy_poll", "60")];
    let applied = bench.apply(&bench.plan(&words));
    assert_eq!(applied.stopped, None, "{:?}", applied.reverted);
    check_all(&bench);
    for (path, values) in of_driver {
        let text = bench.read(path);
        values.split(", ").for_each(|value| assert!(text.contains(value), "{path}: {text}, not {value}"));
    }
    let drift = bench.tuning().verify("ping-interface").unwrap();
    assert!(drift.iter().all(latpath_tune::Drift::is_none), "{drift:?}");
    let left_alone: Vec<String> =
        bench.tuning().undo("ping-interface").unwrap().into_iter().filter(|text| text.contains("left at")).collect();
    assert_eq!(left_alone, [""; 0]);
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
}

#[test]
fn mlx5_has_all_of_config_sh_and_is_undone() {
    applied_and_undone(
        MLX5,
        &[
            (
                "sys/class/net/NIC/ethtool/coalescing",
                "adaptive-rx off adaptive-tx off rx-usecs 0 rx-frames 1 tx-usecs 0 tx-frames 1",
            ),
            (
                "sys/class/net/NIC/ethtool/private-flags",
                "rx_cqe_moder off, tx_port_ts off, skb_tx_mpwqe off, rx_striding_rq off, xdp_tx_mpwqe on",
            ),
            ("sys/class/net/NIC/ethtool/features", "rx-ntuple-filter off, rx-hashing off"),
        ],
    );
}

#[test]
fn ice_has_all_of_config_sh_and_is_undone() {
    applied_and_undone(
        ICE,
        &[
            ("sys/class/net/NIC/ethtool/coalescing", "adaptive-rx off adaptive-tx off rx-usecs 0, tx-usecs 0"),
            ("sys/class/net/NIC/ethtool/private-flags", "fw-lldp-agent off, legacy-rx off"),
            ("sys/class/net/NIC/ethtool/features", "rx-ntuple-filter on, rx-hashing on"),
        ],
    );
}

#[test]
fn without_a_namespace_and_ptp_the_device_stays_and_its_clock_is_left() {
    let bench = Bench::new(MLX5);
    let plan = bench.plan(&[("no_namespace", "1"), ("no_ptp", "1")]);
    let has = |setting: Setting| plan.steps.iter().any(|step| step.setting == setting);
    for setting in [Setting::DeviceNamespace, Setting::DevicePrivateNamespace, Setting::DeviceClockSync] {
        assert!(!has(setting), "{setting}");
    }
    // Without an address and a peer, these lines do not apply, and the reason names the missing flag.
    let why = |setting: Setting| plan.skipped.iter().find(|skipped| skipped.setting == setting).map(|s| s.why.as_str());
    assert!(!has(Setting::DeviceAddresses) && why(Setting::DeviceAddresses).is_some());
    assert!(!has(Setting::BusyPoll) && has(Setting::DeviceRings));
    let applied = bench.apply(&plan);
    assert_eq!(applied.stopped, None);
    assert_eq!(bench.read("sys/class/net/NIC/netlink/namespace"), "none");
}

#[test]
fn the_clock_that_another_program_sets_is_left_alone() {
    let bench = Bench::new(ICE);
    fs::write(bench.folder.path().join(format!("sys/class/net/{NIC}/netlink/clock-sync")), "other\n").unwrap();
    let plan = bench.plan(&[]);
    assert!(!plan.steps.iter().any(|step| step.setting == Setting::DeviceClockSync));
    assert!(plan.met.iter().any(|met| met.setting == Setting::DeviceClockSync && met.value == "other"));
}

#[test]
fn what_link_up_or_a_change_of_queues_resets_is_drift() {
    let bench = Bench::new(MLX5);
    bench.apply(&bench.plan(&[]));
    fs::write(bench.folder.path().join("proc/irq/61/smp_affinity_list"), "0-3\n").unwrap();
    let drift = bench.tuning().verify("ping-interface").unwrap();
    let drifted: Vec<Setting> = drift.iter().flat_map(|drift| &drift.drifted).map(|step| step.setting).collect();
    assert_eq!(drifted, [Setting::IrqAffinity]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Applies any lines in any order, individually or together, and then undoes them.
    #[test]
    fn any_sequence_of_lines_is_undone(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..24),
        calls in 1_usize..4,
    ) {
        let bench = Bench::new(MLX5);
        let before = snapshot(bench.folder.path());
        let whole = Profile::named("ping-interface").unwrap();
        for part in picks.chunks(picks.len().div_ceil(calls)) {
            let lines = part.iter().map(|pick| whole.lines[pick.index(whole.lines.len())].clone()).collect();
            let mut profile = whole.clone();
            profile.lines = lines;
            let variables = Bench::variables(&[ADDRESS, PEER, ("busy_poll", "60")]);
            let plan = plan(&profile, &variables, &bench.machine.again()).unwrap();
            prop_assert_eq!(bench.apply(&plan).stopped, None);
        }
        let messages = bench.tuning().undo("ping-interface").unwrap();
        prop_assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0], "{:?}", messages);
    }
}

#[test]
fn a_move_that_ends_routes_is_warned_about() {
    let bench = Bench::new(ICE);
    let warnings = |bench: &Bench, words: &[(&str, &str)]| bench.plan(words).warnings.join("\n");
    assert_eq!(warnings(&bench, &[]), "");
    let route = "Iface\tDestination\tGateway\tFlags\neth1\t00000000\t0102A8C0\t0003\nlo\t0000007F\t00000000\t0001\n";
    fs::create_dir_all(bench.folder.path().join("proc/net")).unwrap();
    fs::write(bench.folder.path().join("proc/net/route"), route).unwrap();
    assert!(warnings(&bench, &[]).starts_with("eth1 has routes by a gateway"), "{}", warnings(&bench, &[]));
    assert_eq!(warnings(&bench, &[("no_namespace", "1")]), "", "it does not move");
}

#[test]
fn lines_come_in_the_order_of_the_profile() {
    let bench = Bench::new(MLX5);
    let plan = bench.plan(&[ADDRESS, PEER]);
    let at = |setting: Setting| plan.steps.iter().position(|step| step.setting == setting).expect("a step");
    let order = [
        Setting::DevicePrivateNamespace,
        Setting::DeviceNamespace,
        Setting::DeviceChannels,
        Setting::DeviceAddresses,
        Setting::DeviceNeighbours,
        Setting::IrqAffinity,
    ];
    assert!(order.map(at).is_sorted(), "{:?}", order.map(at));
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/ping-interface.toml").exists());
}
