//! Delays in the kernel: eBPF programs that spin in a timer interrupt and in the softirq that receives packets.

use super::fault::ns;
use latpath_linux::monotonic;
use libbpf_sys::*;
use std::{
    ffi::CString,
    fs, io,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

// include/uapi/linux/perf_event.h
const PERF_EVENT_IOC_ENABLE: u32 = 0x2400;
const PERF_EVENT_IOC_DISABLE: u32 = 0x2401;
const PERF_EVENT_IOC_SET_BPF: u32 = 0x4004_2408;

/// Maximum number of clock readings in a program: the verifier must see that the loop ends.
const LOOKS: i32 = 20_000;
/// Bytes copied between two readings, so that [`LOOKS`] readings take long enough.
const COPIED: usize = 32 << 10;
fn checked(returned: i32, what: &str) -> io::Result<i32> {
    match returned {
        0.. => Ok(returned),
        e => Err(io::Error::other(format!("{what}: {}", io::Error::from_raw_os_error(-e)))),
    }
}

fn own(fd: i32) -> OwnedFd {
    // SAFETY: a new descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn insn(code: u32, registers: (u8, u8), off: i16, imm: i32) -> bpf_insn {
    let mut insn = bpf_insn { code: code as u8, off, imm, ..Default::default() };
    insn.set_dst_reg(registers.0);
    insn.set_src_reg(registers.1);
    insn
}

/// Returns a program that spins until the time stored at the beginning of the map, or for `time` if that is 0.
///
/// `r6 = map[0].until ?: ktime() + time; for r7 in 0..LOOKS { if ktime() >= r6 { return -1 } map[0] = map[0] } return
/// -1`
fn program(map: RawFd, time: Duration) -> Vec<bpf_insn> {
    let set = |to, value| insn(BPF_ALU64 | BPF_MOV | BPF_K, (to, 0), 0, value);
    let copy = |to, from| insn(BPF_ALU64 | BPF_MOV | BPF_X, (to, from), 0, 0);
    let plus = |to, value| insn(BPF_ALU64 | BPF_ADD | BPF_K, (to, 0), 0, value);
    let call = |helper: u32| insn(BPF_JMP | BPF_CALL, (0, 0), 0, helper as i32);
    let jump = |how: u32, registers, off, value| insn(BPF_JMP | how, registers, off, value);
    let exit = insn(BPF_JMP | BPF_EXIT, (0, 0), 0, 0);
    let the_map = [insn(BPF_LD | BPF_IMM | BPF_DW, (1, BPF_PSEUDO_MAP_FD as u8), 0, map), insn(0, (0, 0), 0, 0)];
    let the_key = [copy(2, 10), plus(2, -4)];
    let mut all = vec![insn(BPF_ST | BPF_W | BPF_MEM, (10, 0), -4, 0)];
    all.extend(the_map);
    all.extend(the_key);
    // No entry: jump to the end.
    all.extend([call(BPF_FUNC_map_lookup_elem), jump(BPF_JEQ | BPF_K, (0, 0), 20, 0), copy(8, 0)]);
    all.push(insn(BPF_LDX | BPF_DW | BPF_MEM, (6, 8), 0, 0));
    all.extend([
        jump(BPF_JNE | BPF_K, (6, 0), 3, 0),
        call(BPF_FUNC_ktime_get_ns),
        copy(6, 0),
        plus(6, ns(time) as i32),
    ]);
    all.push(set(7, 0));
    // The verifier explores the fall-through branch first, so the exit comes first.
    all.extend([call(BPF_FUNC_ktime_get_ns), jump(BPF_JLT | BPF_X, (0, 6), 2, 0), set(0, -1), exit]);
    all.extend(the_map);
    all.extend(the_key);
    all.extend([copy(3, 8), set(4, 0), call(BPF_FUNC_map_update_elem), plus(7, 1)]);
    all.extend([jump(BPF_JLT | BPF_K, (7, 0), -13, LOOKS), set(0, -1), exit]);
    all
}

/// A program and its map.
struct Spinner {
    map: OwnedFd,
    program: OwnedFd,
}

impl Spinner {
    fn load(kind: u32, time: Duration) -> io::Result<Self> {
        Self::load_after(kind, time, &[])
    }

    /// Loads the program, preceded by the instructions `first`.
    fn load_after(kind: u32, time: Duration, first: &[bpf_insn]) -> io::Result<Self> {
        // SAFETY: the pointers are to values that outlive the calls and have the given lengths.
        let map = unsafe { bpf_map_create(BPF_MAP_TYPE_ARRAY, c"lp_until".as_ptr(), 4, COPIED as u32, 1, ptr::null()) };
        let map = own(checked(map, "make a map")?);
        let insns = [first, &program(map.as_raw_fd(), time)].concat();
        // SAFETY: as above.
        let loaded = unsafe {
            let (name, licence) = (c"lp_spin".as_ptr(), c"GPL".as_ptr());
            bpf_prog_load(kind, name, licence, insns.as_ptr(), insns.len() as size_t, ptr::null_mut())
        };
        Ok(Self { map, program: own(checked(loaded, "load a program")?) })
    }

    fn until(&self, t: u64) -> io::Result<()> {
        let (key, mut value) = (0u32, [0u64; COPIED / 8]);
        value[0] = t;
        // SAFETY: key and value outlive the call, and have the map's sizes.
        let put =
            unsafe { bpf_map_update_elem(self.map.as_raw_fd(), ptr::from_ref(&key).cast(), value.as_ptr().cast(), 0) };
        checked(put, "set the time").map(drop)
    }
}

/// A timer interrupt that occupies a CPU for a long time: a perf event of the kernel's software clock with a program
/// attached.
pub struct Storm {
    event: OwnedFd,
    spinner: Spinner,
    /// Duration of each interrupt of a storm; `None`: a single interrupt lasts for the whole storm.
    piece: Option<Duration>,
}

impl Storm {
    /// `period`: interval of perf's interrupt. It must be so long that few interrupts occur between the end of the long
    /// interrupt and the end of the event, since each of them is slow in an emulated guest.
    pub fn new(cpu: i32, period: Duration, piece: Option<Duration>) -> io::Result<Self> {
        let spinner = Spinner::load(BPF_PROG_TYPE_PERF_EVENT, piece.unwrap_or_default())?;
        let mut attr = perf_event_attr {
            size: size_of::<perf_event_attr>() as u32,
            type_: PERF_TYPE_SOFTWARE,
            config: u64::from(PERF_COUNT_SW_CPU_CLOCK),
            __bindgen_anon_1: perf_event_attr__bindgen_ty_1 { sample_period: period.as_nanos() as u64 },
            ..Default::default()
        };
        // Enabled explicitly for each storm.
        attr.set_disabled(1);
        let storm = Self { event: open_event(&attr, cpu)?, spinner, piece };
        ask(&storm.event, PERF_EVENT_IOC_SET_BPF, storm.spinner.program.as_raw_fd())?;
        Ok(storm)
    }

    /// Keeps the CPU busy for `time`.
    pub fn rage(&self, time: Duration) -> io::Result<()> {
        if self.piece.is_none() {
            self.spinner.until((monotonic() + ns(time)) as u64)?;
        }
        ask(&self.event, PERF_EVENT_IOC_ENABLE, 0)?;
        latpath_testkit::waits::pace(time);
        ask(&self.event, PERF_EVENT_IOC_DISABLE, 0)
    }
}

/// Makes an interrupt handler take longer while this value exists, by a program at its entry.
pub struct CostlyIrq {
    _event: OwnedFd,
    _spinner: Spinner,
}

impl CostlyIrq {
    /// Makes each interrupt `irq` take `time` longer.
    pub fn new(irq: i32, time: Duration) -> io::Result<Self> {
        // The tracepoint's IRQ number follows the fields common to all events.
        let first = [
            insn(BPF_LDX | BPF_W | BPF_MEM, (0, 1), 8, 0),
            insn(BPF_JMP | BPF_JEQ | BPF_K, (0, 0), 2, irq),
            insn(BPF_ALU64 | BPF_MOV | BPF_K, (0, 0), 0, 0),
            insn(BPF_JMP | BPF_EXIT, (0, 0), 0, 0),
        ];
        let spinner = Spinner::load_after(BPF_PROG_TYPE_TRACEPOINT, time, &first)?;
        let id = fs::read_to_string("/sys/kernel/tracing/events/irq/irq_handler_entry/id")?;
        let attr = perf_event_attr {
            size: size_of::<perf_event_attr>() as u32,
            type_: PERF_TYPE_TRACEPOINT,
            config: id.trim().parse().map_err(io::Error::other)?,
            __bindgen_anon_1: perf_event_attr__bindgen_ty_1 { sample_period: 1 << 30 },
            ..Default::default()
        };
        let event = open_event(&attr, 0)?;
        ask(&event, PERF_EVENT_IOC_SET_BPF, spinner.program.as_raw_fd())?;
        ask(&event, PERF_EVENT_IOC_ENABLE, 0)?;
        Ok(Self { _event: event, _spinner: spinner })
    }
}

fn open_event(attr: &perf_event_attr, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: the structure outlives the call, and contains its size.
    let event = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    match event {
        ..0 => Err(io::Error::last_os_error()),
        fd => Ok(own(fd as i32)),
    }
}

fn ask(event: &OwnedFd, what: u32, value: i32) -> io::Result<()> {
    // SAFETY: these calls take only integers.
    match unsafe { libc::ioctl(event.as_raw_fd(), what as _, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes each packet that the device receives cost its softirq `time` before it is dropped, for as long as the device
/// exists.
pub fn make_costly(device: &str, time: Duration) -> io::Result<()> {
    let spinner = Spinner::load(BPF_PROG_TYPE_SCHED_CLS, time)?;
    let name = CString::new(device)?;
    // SAFETY: a NUL-terminated string.
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let hook = bpf_tc_hook {
        sz: size_of::<bpf_tc_hook>() as size_t,
        ifindex,
        attach_point: BPF_TC_INGRESS,
        ..Default::default()
    };
    let mut options = bpf_tc_opts {
        sz: size_of::<bpf_tc_opts>() as size_t,
        prog_fd: spinner.program.as_raw_fd(),
        ..Default::default()
    };
    let mut hook = hook;
    // SAFETY: the structures outlive the calls, and contain their sizes; the kernel keeps its own references.
    unsafe {
        checked(bpf_tc_hook_create(&mut hook), "make a place for a program")?;
        checked(bpf_tc_attach(&hook, &mut options), "attach a program").map(drop)
    }
}
