//! NICs of a machine in the form of a directory tree, with the options that their drivers have.

use crate::machine_folder::MachineFolder;

/// A NIC of a [`MachineFolder`].
#[derive(Clone, Copy, Debug)]
pub struct FolderNic {
    /// The driver.
    pub driver: &'static str,
    channels: &'static str,
    coalescing: &'static str,
    private_flags: &'static str,
    features: &'static str,
    /// Prefix of its interrupts' names.
    irq: &'static str,
}

/// NVIDIA ConnectX (drivers/net/ethernet/mellanox/mlx5/core/en_ethtool.c).
pub const MLX5: FolderNic = FolderNic {
    driver: "mlx5_core",
    channels: "combined 4\nmax combined 63",
    coalescing: "adaptive-rx on adaptive-tx on rx-usecs 8 rx-frames 128 tx-usecs 8 tx-frames 128",
    private_flags: "rx_cqe_moder on tx_cqe_moder off rx_cqe_compress off rx_striding_rq on rx_no_csum_complete off \
                    xdp_tx_mpwqe on skb_tx_mpwqe on tx_port_ts off",
    features: "rx-gro on rx-gro-hw off rx-lro off tx-tcp-segmentation on tx-tcp6-segmentation on \
               tx-generic-segmentation on rx-checksum on tx-checksum-ip-generic off tx-checksum-ipv4 on tx-checksum-ipv6 on \
               rx-ntuple-filter on rx-hashing on hw-tc-offload off\nfixed tx-checksum-ip-generic",
    irq: "mlx5_comp",
};

/// Intel E800 series (drivers/net/ethernet/intel/ice/ice_ethtool.c).
pub const ICE: FolderNic = FolderNic {
    driver: "ice",
    channels: "combined 4\nmax combined 64",
    coalescing: "adaptive-rx on adaptive-tx on rx-usecs 50 rx-frames 0 tx-usecs 50 tx-frames 0",
    private_flags: "link-down-on-close off fw-lldp-agent on vf-true-promisc-support off mdd-auto-reset-vf off \
                    vf-vlan-pruning off legacy-rx off",
    features: "rx-gro on rx-lro off tx-tcp-segmentation on tx-tcp6-segmentation on tx-generic-segmentation on \
               rx-checksum on tx-checksum-ip-generic off tx-checksum-ipv4 on tx-checksum-ipv6 on tx-checksum-sctp on \
               rx-ntuple-filter on rx-hashing on hw-tc-offload off\nfixed tx-checksum-ip-generic rx-lro",
    irq: "ice-rx-",
};

/// Number of interrupts per NIC, and the number of the first interrupt (`FIRST_IRQ`).
const IRQS: u32 = 4;
const FIRST_IRQ: u32 = 60;

impl FolderNic {
    /// Adds the NIC to a machine; its interrupt threads have the policy SCHED_FIFO.
    pub fn lay_out(&self, machine: &MachineFolder, name: &str) {
        let file = |path: &str, text: &str| machine.write(&format!("sys/class/net/{name}/{path}"), text);
        for (path, text) in [
            ("ifindex", "7"),
            ("mtu", "1500"),
            ("speed", "25000"),
            ("tx_queue_len", "1000"),
            ("napi_defer_hard_irqs", "2"),
            ("gro_flush_timeout", "20000"),
            ("threaded", "0"),
            ("ethtool/rings", "rx 1024 tx 1024\nmax rx 8192 tx 8192"),
            ("ethtool/channels", self.channels),
            ("ethtool/coalescing", self.coalescing),
            ("ethtool/pause", "autoneg off rx on tx on"),
            ("ethtool/private-flags", self.private_flags),
            ("ethtool/features", self.features),
            ("netlink/private-namespace", "none"),
            ("netlink/namespace", "none"),
            ("netlink/state", "up"),
            ("netlink/addresses", "none"),
            ("netlink/neighbours", "none"),
            ("netlink/multicast", "on"),
            ("netlink/arp", "on"),
            ("netlink/allmulticast", "off"),
            ("netlink/promiscuous", "off"),
            ("netlink/qdisc", "mq, fq_codel"),
            ("netlink/clock-sync", "none"),
            ("device/numa_node", "0"),
            ("device/power/control", "auto"),
            ("device/d3cold_allowed", "1"),
            ("device/link/l0s_aspm", "1"),
            ("device/link/l1_aspm", "1"),
            ("device/link/l1_1_aspm", "1"),
            ("device/link/l1_2_aspm", "1"),
            ("device/link/clkpm", "1"),
        ] {
            file(path, text);
        }
        for (sysctl, value) in [
            ("ipv6/conf/{}/disable_ipv6", "0"),
            ("ipv6/conf/{}/accept_ra", "1"),
            ("ipv4/conf/{}/arp_ignore", "0"),
            ("ipv4/conf/{}/arp_announce", "0"),
            ("ipv4/conf/{}/rp_filter", "2"),
            ("ipv4/conf/{}/accept_redirects", "1"),
            ("ipv4/conf/{}/send_redirects", "1"),
            ("ipv4/conf/{}/accept_source_route", "1"),
        ] {
            machine.write(&format!("proc/sys/net/{}", sysctl.replace("{}", name)), value);
        }
        machine
            .link(&format!("sys/class/net/{name}/device/driver"), &format!("../../../bus/pci/drivers/{}", self.driver));
        for n in 0..IRQS {
            let number = FIRST_IRQ + n;
            let handler = format!("{}{n}@pci:0000:ae:00.0", self.irq);
            file(&format!("device/msi_irqs/{number}"), "msix");
            machine.write(&format!("proc/irq/{number}/smp_affinity_list"), &(n % 4).to_string());
            machine.write(&format!("proc/irq/{number}/effective_affinity_list"), &(n % 4).to_string());
            machine.write(&format!("proc/irq/{number}/{handler}/name"), "");
            // The kernel truncates thread names to 15 bytes.
            let thread = format!("irq/{number}-{handler}");
            machine.kernel_thread(200 + number, &thread[..15], 1, 50);
        }
    }

    /// The numbers of the NIC's interrupts.
    pub fn irqs() -> impl Iterator<Item = u32> {
        FIRST_IRQ..FIRST_IRQ + IRQS
    }
}
