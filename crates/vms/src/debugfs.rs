//! KVM's directories in debugfs, one per VM.

use latpath_linux::proc::Root;

/// Maximum number of threads per process, and of VMs per machine.
const MAX: usize = 4096;
const KVM: &str = "sys/kernel/debug/kvm";

/// The directories of a process's VMs. KVM names them `TID-FD` after the thread that created the VM, which need not be
/// the main thread. If that thread has ended, the VM is identified by its vCPU threads, since Linux 5.18.
pub fn kvm_folders(root: &Root, pid: u32) -> Vec<String> {
    let tids = root.numbers(&format!("proc/{pid}/task"), MAX).unwrap_or_default();
    let is_own = |folder: &String| {
        let Some((maker, _)) = folder.split_once('-') else { return false };
        let made_here = maker.parse().is_ok_and(|maker| tids.contains(&maker) || maker == pid);
        made_here || vcpus_in(root, &format!("{KVM}/{folder}")).any(|(tid, _)| tids.contains(&tid))
    };
    let folders = root.names(KVM, usize::MAX).into_iter().filter(is_own).take(MAX);
    folders.map(|folder| format!("{KVM}/{folder}")).collect()
}

/// TID and vCPU number of each vCPU of a VM.
pub(crate) fn vcpus_in<'r>(root: &'r Root, folder: &str) -> impl Iterator<Item = (u32, u32)> + 'r {
    let folder = folder.to_owned();
    root.names(&folder, MAX).into_iter().filter_map(move |name| {
        let number = name.strip_prefix("vcpu")?.parse().ok()?;
        Some((root.text(&format!("{folder}/{name}/pid"))?.trim().parse().ok()?, number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_vm_belongs_to_its_process_whatever_created_it() {
        let root = tempfile::tempdir().expect("a folder");
        let make = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        for tid in [70, 71, 72] {
            make(&format!("proc/70/task/{tid}/stat"), "");
        }
        make("sys/kernel/debug/kvm/70-5/exits", "");
        make("sys/kernel/debug/kvm/71-6/exits", "");
        // The thread that created this VM has ended.
        make("sys/kernel/debug/kvm/9-7/vcpu1/pid", "72\n");
        make("sys/kernel/debug/kvm/80-5/vcpu0/pid", "81\n");
        make("sys/kernel/debug/kvm/exits", "");
        let mut found = kvm_folders(&Root::of(root.path()), 70);
        found.sort();
        assert_eq!(found, ["70-5", "71-6", "9-7"].map(|folder| format!("{KVM}/{folder}")));
    }
}
