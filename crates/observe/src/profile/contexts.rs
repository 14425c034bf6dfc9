//! The context in which a function runs: a system call, an interrupt, or the main function of a kernel thread.

use latpath_profile::{is_named, Frame, Kind};

/// Functions that are called by every system call or kernel thread.
const ON_EVERY_PATH: [&str; 27] = [
    "entry_SYSCALL_64_after_hwframe",
    "entry_SYSCALL_64",
    "do_syscall_64",
    "x64_sys_call",
    "syscall_exit_to_user_mode",
    "el0t_64_sync",
    "el0t_64_sync_handler",
    "el0_svc",
    "do_el0_svc",
    "el0_svc_common",
    "el0_svc_common.constprop.0",
    "invoke_syscall",
    "invoke_syscall.constprop.0",
    "ret_from_fork",
    "ret_from_fork_asm",
    "kthread",
    "worker_thread",
    "process_one_work",
    "process_scheduled_works",
    "smpboot_thread_fn",
    "vhost_task_fn",
    "vhost_run_work_list",
    "vhost_worker",
    "io_wqe_worker",
    "io_wq_worker",
    "kernel_thread_starter",
    "__kthread_fn",
];

/// Whether a kernel function is common to all system calls or kernel threads, and so identifies no context.
pub(super) fn is_on_every_path(function: &str) -> bool {
    ON_EVERY_PATH.contains(&function)
}

/// Functions that call the handlers of softirqs.
const SOFTIRQS: [&str; 2] = ["handle_softirqs", "__do_softirq"];

/// The context of the function at index `at`; `None` if none of its callers identifies one.
pub(super) fn entry(functions: &[Frame], at: usize) -> Option<String> {
    let above = &functions[..at];
    if functions[at].kind != Kind::Kernel {
        // Without frame pointers, the previous address need not be the caller's, so only a frame with a name counts.
        return above.last().filter(|caller| is_named(&caller.name)).map(|caller| caller.name.to_string());
    }
    let kernel = || above.iter().enumerate().filter(|(_, frame)| frame.kind == Kind::Kernel);
    if let Some((softirqs, _)) = kernel().rfind(|(_, frame)| SOFTIRQS.contains(&&*frame.name)) {
        return Some(format!("softirq {}", functions[softirqs + 1].name));
    }
    if let Some((_, interrupt)) = kernel().rfind(|(_, frame)| is_interrupt(&frame.name)) {
        return Some(interrupt.name.trim_start_matches("asm_").trim_start_matches("sysvec_").replace("exc_", ""));
    }
    let mut telling = kernel().map(|(_, frame)| frame).filter(|frame| !is_on_every_path(&frame.name));
    telling.next().map(|frame| system_call(&frame.name).to_owned())
}

fn is_interrupt(name: &str) -> bool {
    ["asm_sysvec_", "asm_exc_", "asm_common_interrupt", "el1h_64_irq", "el0t_64_irq"]
        .iter()
        .any(|begin| name.starts_with(begin))
}

/// Name of the system call: `writev` for `__x64_sys_writev`, and also for `do_writev`, because only this name remains
/// if the compiler merges the two functions.
fn system_call(function: &str) -> &str {
    const VECTORS: [&str; 4] = ["readv", "writev", "preadv", "pwritev"];
    if let Some(call) = function.strip_prefix("do_").filter(|call| VECTORS.contains(call)) {
        return call;
    }
    const BEGIN: [&str; 7] = ["__x64_sys_", "__arm64_sys_", "__ia32_sys_", "__se_sys_", "__do_sys_", "ksys_", "__sys_"];
    BEGIN.iter().find_map(|begin| function.strip_prefix(begin)).unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(chain: &str) -> Option<String> {
        let frame = |name: &str| match name.strip_suffix("_[k]") {
            Some(name) => Frame::new(name, Kind::Kernel),
            None => Frame::new(name, Kind::User),
        };
        let functions: Vec<Frame> = chain.split(';').map(frame).collect();
        entry(&functions, functions.len() - 1)
    }

    #[test]
    fn a_function_is_under_its_system_call_interrupt_or_task() {
        let call =
            "main;writev;entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];__x64_sys_writev_[k];tun_get_user_[k]";
        assert_eq!(under(call).as_deref(), Some("writev"));
        let one = "main;writev;entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];do_writev_[k];tun_get_user_[k]";
        assert_eq!(under(one).as_deref(), Some("writev"), "where compilers make one function of both");
        let vhost = "ret_from_fork_[k];vhost_task_fn_[k];vhost_run_work_list_[k];handle_tx_kick_[k];tun_get_user_[k]";
        assert_eq!(under(vhost).as_deref(), Some("handle_tx_kick"));
        let softirq =
            "main;send;do_syscall_64_[k];__x64_sys_sendto_[k];do_softirq_[k];__do_softirq_[k];net_rx_action_[k];x_[k]";
        assert_eq!(under(softirq).as_deref(), Some("softirq net_rx_action"));
        let of_itself = "a_[k];handle_softirqs_[k];net_rx_action_[k]";
        assert_eq!(under(of_itself).as_deref(), Some("softirq net_rx_action"));
        assert_eq!(under("main;asm_exc_page_fault_[k];exc_page_fault_[k]").as_deref(), Some("page_fault"));
        assert_eq!(under("asm_sysvec_apic_timer_interrupt_[k];x_[k]").as_deref(), Some("apic_timer_interrupt"));
        assert_eq!(under("_start;main;f").as_deref(), Some("main"));
        assert_eq!(under("_start;[libglib-2.0.so.0];ioctl"), None, "without frame pointers nobody knows the caller");
        assert_eq!((under("main"), under("do_syscall_64_[k]")), (None, None));
    }
}
