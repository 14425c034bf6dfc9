//! The fixes that latpath advises end the delays while the fault continues: those that need a whole hypervisor.

use crate::{
    blame::{self, Blame},
    fault::{self, Injection},
    faults::{listen_here, myself, record_stream_during, stream, ROUNDS, THRESHOLD},
    fixed::{advised, follow, held, Setting},
    linked::{emulated, run},
    stage::{plain, Stage, Stream},
    verdict::Seen,
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::Switch;
use std::{fs, path::Path, process::Command, time::Duration};

pub const FAIR: Test = Test { name: "cause_fixed_fair", smoke: false, only_whole: true, seconds: 300, run: fair };
pub const IRQ: Test = Test { name: "cause_fixed_irq", smoke: false, only_whole: true, seconds: 400, run: irq };
pub const FLOWS: Test = Test { name: "cause_fixed_flows", smoke: false, only_whole: true, seconds: 300, run: flows };

/// The application's CPU.
const CPU: usize = 1;

/// A stream, a fault, its expected cause and the expected advice.
struct Case<'a> {
    stream: Stream,
    threshold: Duration,
    blame: &'a Blame,
    /// A string that occurs in the expected fix.
    word: &'a str,
    /// CPU on which delays count; `None`: any.
    cpu: Option<usize>,
    /// Minimum number of packets delayed by the fault, and maximum number after the fix.
    held: (usize, usize),
}

/// Expects the fault to delay packets, applies the advised fix, and expects no more than the permitted delays from the
/// same fault.
fn is_fixed(
    stage: &mut Stage,
    case: Case,
    shell: impl Fn() -> Command,
    fault: impl Fn(&mut Stage) -> Result<Vec<Injection>>,
) -> Outcome {
    let Case { stream, threshold, blame, word, cpu, held: (least, most) } = case;
    let (before, _) = record_stream_during(stage, &stream, threshold, &fault)?;
    let commands = advised(&before, blame, word).map_err(plain)?;
    follow(&commands, shell).map_err(plain)?;
    let (after, truth) = record_stream_during(stage, &stream, threshold, &fault)?;
    let (then, now) = (held(&before, blame, cpu), held(&after, blame, cpu));
    let (all, all_now, journeys) = (before.explained.len(), after.explained.len(), after.journeys);
    eprintln!("{}: held {then} of {all} late packets, then {now} of {all_now} ({journeys} journeys)", blame.fault);
    ensure!(!truth.is_empty() && journeys > 0, "the fault was not there after it: nothing is shown");
    ensure!(then >= least, "the fault held {then} packets");
    ensure!(now <= most, "it holds {now} packets still{}", Seen::listed(after.explained.iter()));
    Ok(())
}

/// Real-time work fills the CPU. The kernel reserves 5 % of the CPU for ordinary threads: from Linux 6.12 on only while
/// such a thread waits, in earlier kernels always.
fn fair(_: &Scale) -> Outcome {
    const SERVER: &str = "/sys/kernel/debug/sched/fair_server/cpu1/runtime";
    let has_server = Path::new(SERVER).exists();
    let file = if has_server { SERVER } else { "/proc/sys/kernel/sched_rt_runtime_us" };
    let _setting = Setting::keep(file).map_err(plain)?;
    let mut stage = Stage::lay_without_guest(Switch::LinuxBridge)?;
    let _reader = listen_here(&stage, CPU)?;
    let case = Case {
        stream: stream(),
        threshold: Duration::from_millis(20),
        blame: if has_server { &blame::FAIR_SERVER } else { &blame::THROTTLE },
        word: if has_server { "fair_server" } else { "sched_rt_runtime_us=-1" },
        cpu: None,
        held: (20, 0),
    };
    is_fixed(
        &mut stage,
        case,
        || Command::new("sh"),
        |stage| {
            let begin = latpath_linux::monotonic();
            let start = |words: &str| {
                let mut command = Command::new(myself()?);
                command.arg(fault::WORD).args(words.split(' ')).args([
                    "times=1",
                    "busy=60000000",
                    "every=0",
                    "gap=5000",
                ]);
                stage.start_command(&stage.path().hypervisor, command)
            };
            // Both processes end when these values are dropped.
            let _crowd = start(&format!("crowd cpu={CPU} threads=1"))?;
            let _hog = start(&format!("hog cpu={CPU} fifo=60"))?;
            latpath_testkit::waits::fault_for(Duration::from_secs(10));
            Ok(vec![Injection::whole(begin, latpath_linux::monotonic())])
        },
    )
}

/// A device's interrupt handler takes long, on the application's CPU.
fn irq(_: &Scale) -> Outcome {
    let [device, sender] = emulated("e1000e")?;
    for nic in [&device, &sender] {
        run(Command::new("ip").args(["link", "set", nic, "up"]))?;
    }
    let mut stage = Stage::lay_without_guest(Switch::LinuxBridge)?;
    let _reader = listen_here(&stage, CPU)?;
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    // If the NIC has several queues, packets arrive through queue 0.
    let is_its = |line: &&str| line.ends_with(&format!(" {device}-rx-0")) || line.ends_with(&format!(" {device}"));
    let line = interrupts.lines().find(is_its).with_context(|| format!("no interrupt of {device}: {interrupts}"))?;
    let number: u32 = line.trim().split(':').next().context("a number")?.parse()?;
    fs::write(format!("/proc/irq/{number}/smp_affinity_list"), CPU.to_string())?;
    let case = Case {
        stream: stream(),
        threshold: THRESHOLD,
        blame: &blame::DEVICE,
        word: "smp_affinity_list",
        cpu: Some(CPU),
        held: (20, 0),
    };
    is_fixed(
        &mut stage,
        case,
        || Command::new("sh"),
        |_| {
            // The NICs are in the machine's initial namespace.
            let words = format!("irq irq={number} cost=150000 cpu=0 device={sender} frames=1 {ROUNDS}");
            fault::parse(&run(Command::new(myself()?).arg(fault::WORD).args(words.split(' ')))?)
                .map_err(anyhow::Error::msg)
        },
    )
}

/// Open vSwitch expires flows between two packets of a slow stream.
fn flows(_: &Scale) -> Outcome {
    let mut stage = Stage::lay_without_guest(Switch::OpenVswitch)?;
    let _reader = listen_here(&stage, CPU)?;
    stage.open_vswitch()?.vsctl("set Open_vSwitch . other_config:max-idle=100")?;
    let folder = stage.open_vswitch()?.folder().to_owned();
    let case = Case {
        // A rate below that at which flows are revalidated, twice a second.
        stream: Stream::sv("MU01", 60).rate(1).publish("--cpu 0"),
        threshold: Duration::from_millis(1),
        blame: &blame::UPCALL,
        word: "max-idle",
        cpu: None,
        // The first packet never finds a flow.
        held: (8, 1),
    };
    let shell = || {
        let mut shell = Command::new("sh");
        shell.env("OVS_RUNDIR", &folder);
        shell
    };
    is_fixed(&mut stage, case, shell, |_| {
        let begin = latpath_linux::monotonic();
        latpath_testkit::waits::fault_for(Duration::from_secs(20));
        Ok(vec![Injection::whole(begin, latpath_linux::monotonic())])
    })
}
