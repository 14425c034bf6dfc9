// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Two NICs with a cable between them, lpn0 and lpn1, that stamp every frame by their own clocks. They test readers of
 * such stamps: the correct stamps are known, and the NICs can be made to misbehave as real ones do.
 *
 * The other NIC receives a frame sent at t, by the sender's clock, at exactly t + wire_ns, and passes it to the stack
 * no earlier.
 *
 * A parameter with two values has one for each NIC (tx_lost=0,3). All except those of the clocks can be changed at any
 * time, in /sys/module/stamping_nics/parameters. `ethtool -S` counts stamps made, lost and late.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>
#include "kernels.h"
#include "phc.h"

#define MAX_WIRE_NS 1000000U

static uint wire_ns = 1000;
module_param(wire_ns, uint, 0644);
MODULE_PARM_DESC(wire_ns, "how long a frame is on the cable; at most 1 ms, as the CPU waits for it");

static uint tx_lost[NICS];
module_param_array(tx_lost, uint, NULL, 0644);
MODULE_PARM_DESC(tx_lost, "1: no TX stamp comes; N: each Nth does not; 0: all come");

static uint tx_zero[NICS];
module_param_array(tx_zero, uint, NULL, 0644);
MODULE_PARM_DESC(tx_zero, "1: each TX stamp is 0; N: each Nth is; 0: none is");

static uint tx_late_ms[NICS];
module_param_array(tx_late_ms, uint, NULL, 0644);
MODULE_PARM_DESC(tx_late_ms, "how long after its frame a TX stamp comes");

static uint rx_lost[NICS];
module_param_array(rx_lost, uint, NULL, 0644);
MODULE_PARM_DESC(rx_lost, "1: no frame is stamped when it arrives; N: each Nth is not; 0: all are");

static uint rx_filters = BIT(HWTSTAMP_FILTER_NONE) | BIT(HWTSTAMP_FILTER_ALL);
module_param(rx_filters, uint, 0644);
MODULE_PARM_DESC(rx_filters, "the HWTSTAMP_FILTER_* that can be had, a bit for each");

static uint queues = 1;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "transmit queues of each NIC, 1 to 16");

enum { TX_STAMPS, TX_STAMPS_LOST, TX_STAMPS_ZERO, TX_STAMPS_LATE, RX_STAMPS, RX_STAMPS_LOST, COUNTED };
static const char counted[COUNTED][ETH_GSTRING_LEN] = {
	"tx_stamps", "tx_stamps_lost", "tx_stamps_zero", "tx_stamps_late", "rx_stamps", "rx_stamps_lost",
};

struct nic {
	struct net_device *dev;
	struct nic *peer;
	struct phc *phc;
	int nr;
	int tx_type;
	int rx_filter;
	u64 tx_asked;	/* frames whose sender requested a stamp */
	u64 rx_asked;	/* frames received while stamping was on */
	u64 counts[COUNTED];
	struct sk_buff_head late;
	struct delayed_work give_late;
};

/* Control block of a frame whose stamp is delivered later. */
struct late {
	u64 due;	/* in jiffies */
	u64 stamp;
};

static struct nic *nics[NICS];

static bool is_nth(u64 nr, uint n)
{
	return n && do_div(nr, n) == 0;
}

static void give_tx_stamp(struct sk_buff *skb, u64 stamp)
{
	struct skb_shared_hwtstamps stamps = { .hwtstamp = ns_to_ktime(stamp) };

	skb_tstamp_tx(skb, &stamps);
}

static void give_late_stamps(struct work_struct *work)
{
	struct nic *nic = container_of(to_delayed_work(work), struct nic, give_late);
	struct sk_buff *skb;

	while ((skb = skb_dequeue(&nic->late))) {
		struct late *late = (struct late *)skb->cb;
		u64 now = get_jiffies_64();

		if (now < late->due) {
			skb_queue_head(&nic->late, skb);
			schedule_delayed_work(&nic->give_late, late->due - now);
			return;
		}
		local_bh_disable();
		give_tx_stamp(skb, late->stamp);
		local_bh_enable();
		consume_skb(skb);
	}
}

/* Delivers the stamp of a sent frame to its sender: now, later or never. Consumes the frame. */
static void stamp_sent(struct nic *nic, struct sk_buff *skb, u64 stamp)
{
	uint late_ms = READ_ONCE(tx_late_ms[nic->nr]);
	struct late *late = (struct late *)skb->cb;

	nic->tx_asked++;
	if (is_nth(nic->tx_asked, READ_ONCE(tx_lost[nic->nr]))) {
		nic->counts[TX_STAMPS_LOST]++;
		consume_skb(skb);
		return;
	}
	if (is_nth(nic->tx_asked, READ_ONCE(tx_zero[nic->nr]))) {
		nic->counts[TX_STAMPS_ZERO]++;
		stamp = 0;
	} else {
		nic->counts[TX_STAMPS]++;
	}
	if (!late_ms) {
		give_tx_stamp(skb, stamp);
		consume_skb(skb);
		return;
	}
	nic->counts[TX_STAMPS_LATE]++;
	late->due = get_jiffies_64() + msecs_to_jiffies(late_ms);
	late->stamp = stamp;
	skb_queue_tail(&nic->late, skb);
	schedule_delayed_work(&nic->give_late, msecs_to_jiffies(late_ms));
}

static void stamp_received(struct nic *nic, struct sk_buff *skb, u64 stamp)
{
	nic->rx_asked++;
	if (is_nth(nic->rx_asked, READ_ONCE(rx_lost[nic->nr]))) {
		nic->counts[RX_STAMPS_LOST]++;
	} else {
		nic->counts[RX_STAMPS]++;
		skb_hwtstamps(skb)->hwtstamp = ns_to_ktime(stamp);
	}
}

/* Receives a frame from the cable. */
static void receive(struct nic *nic, struct sk_buff *skb, u64 stamp)
{
	nic->dev->stats.rx_packets++;
	nic->dev->stats.rx_bytes += skb->len;
	/* Metadata of the sender's stack does not cross a cable. */
	skb_scrub_packet(skb, true);
	skb->protocol = eth_type_trans(skb, nic->dev);
	if (nic->rx_filter != HWTSTAMP_FILTER_NONE)
		stamp_received(nic, skb, stamp);
	netif_rx(skb);
}

static netdev_tx_t nic_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev), *peer = nic->peer;
	bool asked = (skb_shinfo(skb)->tx_flags & SKBTX_HW_TSTAMP) && nic->tx_type == HWTSTAMP_TX_ON;
	uint wire = min(READ_ONCE(wire_ns), MAX_WIRE_NS);
	struct sk_buff *arriving = netif_running(peer->dev) ? skb_copy(skb, GFP_ATOMIC) : NULL;
	u64 now, left, arrived;

	if (!arriving) {
		dev->stats.tx_dropped++;
		consume_skb(skb);
		return NETDEV_TX_OK;
	}
	dev->stats.tx_packets++;
	dev->stats.tx_bytes += skb->len;
	if (asked)
		skb_shinfo(skb)->tx_flags |= SKBTX_IN_PROGRESS;
	skb_tx_timestamp(skb);

	now = ktime_get_ns();
	left = phc_show(nic->phc, now);
	arrived = phc_show(peer->phc, now + wire);
	if (asked)
		stamp_sent(nic, skb, left);
	else
		consume_skb(skb);
	/* Waits by the clock of the stamps, so that no frame arrives before its stamp. */
	while (ktime_get_ns() < now + wire)
		cpu_relax();
	receive(peer, arriving, arrived);
	return NETDEV_TX_OK;
}

static int set_stamping(struct net_device *dev, int tx_type, int *rx_filter)
{
	struct nic *nic = netdev_priv(dev);
	uint filters = READ_ONCE(rx_filters);

	if (tx_type != HWTSTAMP_TX_OFF && tx_type != HWTSTAMP_TX_ON)
		return -ERANGE;
	/* A NIC may stamp more than requested, and reports it. */
	if (*rx_filter != HWTSTAMP_FILTER_NONE && (filters & BIT(HWTSTAMP_FILTER_ALL)))
		*rx_filter = HWTSTAMP_FILTER_ALL;
	if (*rx_filter < 0 || *rx_filter > 31 || !(filters & BIT(*rx_filter)))
		return -ERANGE;
	nic->tx_type = tx_type;
	nic->rx_filter = *rx_filter;
	return 0;
}

static void get_stamping(struct net_device *dev, int *tx_type, int *rx_filter)
{
	struct nic *nic = netdev_priv(dev);

	*tx_type = nic->tx_type;
	*rx_filter = nic->rx_filter;
}

DEFINE_STAMPING(set_stamping, get_stamping)

/* The link exists while both NICs are up. */
static int nic_open(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);

	netif_tx_start_all_queues(dev);
	if (netif_running(nic->peer->dev)) {
		netif_carrier_on(dev);
		netif_carrier_on(nic->peer->dev);
	}
	return 0;
}

static int nic_stop(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);

	netif_tx_stop_all_queues(dev);
	netif_carrier_off(dev);
	netif_carrier_off(nic->peer->dev);
	return 0;
}

static const struct net_device_ops nic_ops = {
	.ndo_open = nic_open,
	.ndo_stop = nic_stop,
	.ndo_start_xmit = nic_start_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
	STAMPING_OPS,
};

static int get_ts_info(struct net_device *dev, TS_INFO *info)
{
	struct nic *nic = netdev_priv(dev);

	info->so_timestamping = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE |
				SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_TX_SOFTWARE |
				SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	info->phc_index = phc_index(nic->phc);
	info->tx_types = BIT(HWTSTAMP_TX_OFF) | BIT(HWTSTAMP_TX_ON);
	info->rx_filters = READ_ONCE(rx_filters);
	return 0;
}

static void get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
}

static int get_sset_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? COUNTED : -EOPNOTSUPP;
}

static void get_strings(struct net_device *dev, u32 set, u8 *names)
{
	if (set == ETH_SS_STATS)
		memcpy(names, counted, sizeof(counted));
}

static void get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *counts)
{
	struct nic *nic = netdev_priv(dev);

	memcpy(counts, nic->counts, sizeof(nic->counts));
}

static const struct ethtool_ops nic_ethtool_ops = {
	.get_drvinfo = get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_ts_info = get_ts_info,
	.get_sset_count = get_sset_count,
	.get_strings = get_strings,
	.get_ethtool_stats = get_ethtool_stats,
};

static struct nic *nic_new(int nr)
{
	struct net_device *dev = alloc_netdev_mqs(sizeof(struct nic), "lpn%d", NET_NAME_ENUM, ether_setup,
						  clamp(queues, 1U, 16U), 1);
	u8 address[ETH_ALEN] = { 0x02, 'l', 'p', 'n', 0, nr };
	struct nic *nic;

	if (!dev)
		return NULL;
	dev->netdev_ops = &nic_ops;
	dev->ethtool_ops = &nic_ethtool_ops;
	dev->max_mtu = 9000;
	eth_hw_addr_set(dev, address);
	netif_carrier_off(dev);
	nic = netdev_priv(dev);
	nic->dev = dev;
	nic->nr = nr;
	nic->phc = phc_of_nic(nr);
	skb_queue_head_init(&nic->late);
	INIT_DELAYED_WORK(&nic->give_late, give_late_stamps);
	return nic;
}

static void nics_end(void)
{
	int i;

	/* Neither NIC is freed while the other may still send to it. */
	for (i = 0; i < NICS; i++)
		if (nics[i] && nics[i]->dev->reg_state == NETREG_REGISTERED)
			unregister_netdev(nics[i]->dev);
	for (i = 0; i < NICS; i++) {
		if (!nics[i])
			continue;
		cancel_delayed_work_sync(&nics[i]->give_late);
		skb_queue_purge(&nics[i]->late);
		free_netdev(nics[i]->dev);
	}
	phcs_end();
}

static int __init nics_begin(void)
{
	int error, i;

	error = phcs_begin();
	if (error)
		return error;
	for (i = 0; i < NICS; i++) {
		nics[i] = nic_new(i);
		if (!nics[i]) {
			error = -ENOMEM;
			goto failed;
		}
	}
	for (i = 0; i < NICS; i++)
		nics[i]->peer = nics[NICS - 1 - i];
	for (i = 0; i < NICS; i++) {
		error = register_netdev(nics[i]->dev);
		if (error)
			goto failed;
	}
	return 0;
failed:
	nics_end();
	return error;
}

module_init(nics_begin);
module_exit(nics_end);
/* Of the two licences above, the kernel accepts only this one. */
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("two NICs whose hardware timestamps are known, for latpath's tests");
