//! A VM's host, hypervisor and CPU placement, which may differ between two configurations unintentionally.

use super::Setup;
use latpath_linux::proc::{line, Root};
use latpath_profile::qemu_version;
use latpath_vms::{Role, Vm};
use std::path::Path;

/// Reads the VM's current setup.
pub(super) fn setup(vm: &Vm) -> Setup {
    Setup { hypervisor: qemu_version(vm.pid), ..at(&Root::of(Path::new("/")), vm) }
}

fn at(root: &Root, vm: &Vm) -> Setup {
    let cpus = |role: Role| -> Vec<String> {
        vm.threads.iter().filter(|thread| thread.role == role).map(|thread| thread.cpus_allowed.to_string()).collect()
    };
    let parameter = |path: &str| root.text(&format!("sys/module/{path}")).map(|text| text.trim().to_owned());
    let posted = parameter("kvm_intel/parameters/enable_apicv").or_else(|| parameter("kvm_amd/parameters/avic"));
    Setup {
        hypervisor: None,
        machine: vm.machine.clone(),
        host_cpus: line(root.path("sys/devices/system/cpu/online")),
        vcpus: cpus(Role::Vcpu),
        vhost_workers: cpus(Role::Vhost),
        halt_poll_ns: parameter("kvm/parameters/halt_poll_ns").and_then(|text| text.parse().ok()),
        posted_interrupts: posted.map(|text| matches!(text.as_str(), "Y" | "1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_vms::Thread;
    use std::fs;

    #[test]
    fn what_a_vm_runs_on_is_read_from_kvm_and_its_threads() {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in [
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/module/kvm/parameters/halt_poll_ns", "200000\n"),
            ("sys/module/kvm_intel/parameters/enable_apicv", "Y\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        let thread = |role, cpus: &str| Thread { role, cpus_allowed: cpus.parse().expect("CPUs"), ..Thread::default() };
        let threads = vec![thread(Role::MainLoop, "0-7"), thread(Role::Vcpu, "2"), thread(Role::Vcpu, "3")];
        let vm = Vm { machine: Some("pc-q35-7.2".into()), threads, ..Vm::default() };
        let setup = at(&Root::of(root.path()), &vm);
        let expected = Setup {
            machine: Some("pc-q35-7.2".into()),
            host_cpus: "0-7".into(),
            vcpus: vec!["2".into(), "3".into()],
            halt_poll_ns: Some(200_000),
            posted_interrupts: Some(true),
            ..Setup::default()
        };
        assert_eq!(setup, expected);
        assert_eq!(at(&Root::of("/nowhere".as_ref()), &Vm::default()), Setup::default(), "nothing is made up");
    }
}
