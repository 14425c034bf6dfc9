//! The part of Perfetto's trace format that latpath writes. Names and numbers of the fields are those of its public
//! definitions (protos/perfetto/trace: trace_packet.proto, ftrace/*.proto, track_event/*.proto, ps/process_tree.proto,
//! profiling/*.proto, clock_snapshot.proto; common/system_info.proto), which are stable and document the fields. Unused
//! fields are omitted.
#![allow(missing_docs)]

/// Defines messages by their fields: for each field its type and, in brackets, its attributes for prost.
macro_rules! messages {
    ($($(#[$doc:meta])* struct $name:ident {
        $($(#[$about:meta])* $field:ident: $type:ty = [$($attribute:tt)*],)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct $name {
            $($(#[$about])* #[prost($($attribute)*)] pub $field: $type,)*
        }
    )*};
}

messages! {
    /// A file is a sequence of these messages, each encoded as field 1 of a message `Trace`.
    struct TracePacket {
        timestamp: Option<u64> = [uint64, optional, tag = "8"],
        trusted_packet_sequence_id: Option<u32> = [uint32, optional, tag = "10"],
        interned_data: Option<InternedData> = [message, optional, tag = "12"],
        sequence_flags: Option<u32> = [uint32, optional, tag = "13"],
        trace_packet_defaults: Option<TracePacketDefaults> = [message, optional, tag = "59"],
        machine_id: Option<u32> = [uint32, optional, tag = "98"],
        data: Option<Data> = [oneof = "Data", tags = "1, 2, 6, 11, 45, 60, 66"],
    }

    struct TracePacketDefaults {
        perf_sample_defaults: Option<PerfSampleDefaults> = [message, optional, tag = "12"],
    }

    struct PerfSampleDefaults {
        timebase: Option<Timebase> = [message, optional, tag = "1"],
    }

    struct Timebase {
        frequency: Option<u64> = [uint64, optional, tag = "2"],
        /// `SW_CPU_CLOCK` is 1.
        counter: Option<i32> = [int32, optional, tag = "4"],
    }

    struct PerfSample {
        cpu: Option<u32> = [uint32, optional, tag = "1"],
        pid: Option<u32> = [uint32, optional, tag = "2"],
        tid: Option<u32> = [uint32, optional, tag = "3"],
        callstack_iid: Option<u64> = [uint64, optional, tag = "4"],
        /// Kernel 1, user 2, guest kernel 4.
        cpu_mode: Option<i32> = [int32, optional, tag = "5"],
    }

    struct Mapping {
        iid: Option<u64> = [uint64, optional, tag = "1"],
        path_string_ids: Vec<u64> = [uint64, repeated, packed = "false", tag = "7"],
    }

    struct Frame {
        iid: Option<u64> = [uint64, optional, tag = "1"],
        function_name_id: Option<u64> = [uint64, optional, tag = "2"],
        mapping_id: Option<u64> = [uint64, optional, tag = "3"],
        rel_pc: Option<u64> = [uint64, optional, tag = "4"],
    }

    /// Outermost frame first.
    struct Callstack {
        iid: Option<u64> = [uint64, optional, tag = "1"],
        frame_ids: Vec<u64> = [uint64, repeated, packed = "false", tag = "2"],
    }

    struct InternedData {
        function_names: Vec<InternedString> = [message, repeated, tag = "5"],
        frames: Vec<Frame> = [message, repeated, tag = "6"],
        callstacks: Vec<Callstack> = [message, repeated, tag = "7"],
        mapping_paths: Vec<InternedString> = [message, repeated, tag = "17"],
        mappings: Vec<Mapping> = [message, repeated, tag = "19"],
        /// Names of functions, which events refer to by ID.
        kernel_symbols: Vec<InternedString> = [message, repeated, tag = "26"],
    }

    struct InternedString {
        iid: Option<u64> = [uint64, optional, tag = "1"],
        str: Option<Vec<u8>> = [bytes = "vec", optional, tag = "2"],
    }

    struct ClockSnapshot {
        clocks: Vec<Clock> = [message, repeated, tag = "1"],
        primary_trace_clock: Option<i32> = [int32, optional, tag = "2"],
    }

    struct Clock {
        clock_id: Option<u32> = [uint32, optional, tag = "1"],
        timestamp: Option<u64> = [uint64, optional, tag = "2"],
    }

    struct SystemInfo {
        utsname: Option<Utsname> = [message, optional, tag = "1"],
        machine_name: Option<String> = [string, optional, tag = "17"],
    }

    struct Utsname {
        sysname: Option<String> = [string, optional, tag = "1"],
        version: Option<String> = [string, optional, tag = "2"],
        release: Option<String> = [string, optional, tag = "3"],
    }

    struct ProcessTree {
        processes: Vec<Process> = [message, repeated, tag = "1"],
        threads: Vec<Thread> = [message, repeated, tag = "2"],
    }

    struct Process {
        pid: Option<i32> = [int32, optional, tag = "1"],
        cmdline: Vec<String> = [string, repeated, tag = "3"],
    }

    struct Thread {
        tid: Option<i32> = [int32, optional, tag = "1"],
        name: Option<String> = [string, optional, tag = "2"],
        tgid: Option<i32> = [int32, optional, tag = "3"],
    }

    struct FtraceEventBundle {
        cpu: Option<u32> = [uint32, optional, tag = "1"],
        event: Vec<FtraceEvent> = [message, repeated, tag = "2"],
    }

    struct FtraceEvent {
        timestamp: Option<u64> = [uint64, optional, tag = "1"],
        /// The thread on that CPU.
        pid: Option<u32> = [uint32, optional, tag = "2"],
        event: Option<Ftrace> = [oneof = "Ftrace", tags = "4, 13, 17, 20, 24, 25, 26, 36, 37, 57, 58, 491, 553, 554, 557, 558, 559, 560"],
    }

    struct Empty {}

    struct SchedSwitch {
        prev_comm: Option<String> = [string, optional, tag = "1"],
        prev_pid: Option<i32> = [int32, optional, tag = "2"],
        prev_prio: Option<i32> = [int32, optional, tag = "3"],
        prev_state: Option<i64> = [int64, optional, tag = "4"],
        next_comm: Option<String> = [string, optional, tag = "5"],
        next_pid: Option<i32> = [int32, optional, tag = "6"],
        next_prio: Option<i32> = [int32, optional, tag = "7"],
    }

    /// sched_waking has the same fields as sched_wakeup.
    struct SchedWakeup {
        comm: Option<String> = [string, optional, tag = "1"],
        pid: Option<i32> = [int32, optional, tag = "2"],
        prio: Option<i32> = [int32, optional, tag = "3"],
        success: Option<i32> = [int32, optional, tag = "4"],
        target_cpu: Option<i32> = [int32, optional, tag = "5"],
    }

    struct SchedMigrateTask {
        comm: Option<String> = [string, optional, tag = "1"],
        pid: Option<i32> = [int32, optional, tag = "2"],
        orig_cpu: Option<i32> = [int32, optional, tag = "4"],
        dest_cpu: Option<i32> = [int32, optional, tag = "5"],
    }

    struct CpuIdle {
        /// Idle state; [`OUT_OF_IDLE`] if the CPU leaves idle.
        state: Option<u32> = [uint32, optional, tag = "1"],
        cpu_id: Option<u32> = [uint32, optional, tag = "2"],
    }

    struct Softirq {
        vec: Option<u32> = [uint32, optional, tag = "1"],
    }

    struct IrqHandlerEntry {
        irq: Option<i32> = [int32, optional, tag = "1"],
        name: Option<String> = [string, optional, tag = "2"],
    }

    struct IrqHandlerExit {
        irq: Option<i32> = [int32, optional, tag = "1"],
        ret: Option<i32> = [int32, optional, tag = "2"],
    }

    struct Work {
        /// ID of an interned name.
        function: Option<u64> = [uint64, optional, tag = "2"],
    }

    struct TimerEntry {
        /// ID of an interned name.
        function: Option<u64> = [uint64, optional, tag = "3"],
    }

    struct TrackDescriptor {
        uuid: Option<u64> = [uint64, optional, tag = "1"],
        name: Option<String> = [string, optional, tag = "2"],
        thread: Option<ThreadDescriptor> = [message, optional, tag = "4"],
        parent_uuid: Option<u64> = [uint64, optional, tag = "5"],
        child_ordering: Option<i32> = [int32, optional, tag = "11"],
        sibling_order_rank: Option<i32> = [int32, optional, tag = "12"],
        description: Option<String> = [string, optional, tag = "14"],
        sibling_merge_behavior: Option<i32> = [int32, optional, tag = "15"],
    }

    struct ThreadDescriptor {
        pid: Option<i32> = [int32, optional, tag = "1"],
        tid: Option<i32> = [int32, optional, tag = "2"],
    }

    struct TrackEvent {
        debug_annotations: Vec<DebugAnnotation> = [message, repeated, tag = "4"],
        r#type: Option<i32> = [int32, optional, tag = "9"],
        track_uuid: Option<u64> = [uint64, optional, tag = "11"],
        categories: Vec<String> = [string, repeated, tag = "22"],
        name: Option<String> = [string, optional, tag = "23"],
        flow_ids: Vec<u64> = [fixed64, repeated, packed = "false", tag = "47"],
    }

    struct DebugAnnotation {
        name: Option<String> = [string, optional, tag = "10"],
        value: Option<Value> = [oneof = "Value", tags = "2, 4, 6"],
        array_values: Vec<DebugAnnotation> = [message, repeated, tag = "12"],
    }
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Data {
    #[prost(message, tag = "1")]
    FtraceEvents(FtraceEventBundle),
    #[prost(message, tag = "2")]
    ProcessTree(ProcessTree),
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "45")]
    SystemInfo(SystemInfo),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
    #[prost(message, tag = "66")]
    PerfSample(PerfSample),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ftrace {
    #[prost(message, tag = "4")]
    SchedSwitch(SchedSwitch),
    #[prost(message, tag = "13")]
    CpuIdle(CpuIdle),
    #[prost(message, tag = "17")]
    SchedWakeup(SchedWakeup),
    #[prost(message, tag = "20")]
    SchedWaking(SchedWakeup),
    #[prost(message, tag = "24")]
    SoftirqEntry(Softirq),
    #[prost(message, tag = "25")]
    SoftirqExit(Softirq),
    #[prost(message, tag = "26")]
    SoftirqRaise(Softirq),
    #[prost(message, tag = "36")]
    IrqHandlerEntry(IrqHandlerEntry),
    #[prost(message, tag = "37")]
    IrqHandlerExit(IrqHandlerExit),
    #[prost(message, tag = "57")]
    WorkqueueExecuteEnd(Work),
    #[prost(message, tag = "58")]
    WorkqueueExecuteStart(Work),
    #[prost(message, tag = "491")]
    SchedMigrateTask(SchedMigrateTask),
    #[prost(message, tag = "553")]
    HrtimerExpireEntry(TimerEntry),
    #[prost(message, tag = "554")]
    HrtimerExpireExit(Empty),
    #[prost(message, tag = "557")]
    TimerExpireEntry(TimerEntry),
    #[prost(message, tag = "558")]
    TimerExpireExit(Empty),
    #[prost(message, tag = "559")]
    LocalTimerEntry(Empty),
    #[prost(message, tag = "560")]
    LocalTimerExit(Empty),
}

/// The kernel's value for leaving idle.
pub const OUT_OF_IDLE: u32 = u32::MAX;

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Value {
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "4")]
    Int(i64),
    #[prost(string, tag = "6")]
    Text(String),
}
