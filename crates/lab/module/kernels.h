/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Differences between kernels, from 6.1 on. */
#ifndef LATPATH_LAB_KERNELS_H
#define LATPATH_LAB_KERNELS_H

#include <linux/net_tstamp.h>
#include <linux/netdevice.h>
#include <linux/uaccess.h>
#include <linux/version.h>

/* The structure for ethtool's query of timestamping capabilities. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
#define TS_INFO struct kernel_ethtool_ts_info
#else
#define TS_INFO struct ethtool_ts_info
#endif

/* Hooks of net_device_ops that set and get the configuration of stamps, by two functions of the driver: set may change
 * the filter. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)

#define STAMPING_OPS .ndo_hwtstamp_set = stamping_set, .ndo_hwtstamp_get = stamping_get
#define DEFINE_STAMPING(set, get)									\
static int stamping_set(struct net_device *dev, struct kernel_hwtstamp_config *config,			\
			struct netlink_ext_ack *extack)							\
{													\
	return set(dev, config->tx_type, &config->rx_filter);						\
}													\
static int stamping_get(struct net_device *dev, struct kernel_hwtstamp_config *config)			\
{													\
	get(dev, &config->tx_type, &config->rx_filter);							\
	return 0;											\
}

#else

#define STAMPING_OPS .ndo_eth_ioctl = stamping_ioctl
#define DEFINE_STAMPING(set, get)									\
static int stamping_ioctl(struct net_device *dev, struct ifreq *ifr, int cmd)				\
{													\
	struct hwtstamp_config config = {};								\
	int error;											\
													\
	switch (cmd) {											\
	case SIOCSHWTSTAMP:										\
		if (copy_from_user(&config, ifr->ifr_data, sizeof(config)))				\
			return -EFAULT;									\
		error = set(dev, config.tx_type, &config.rx_filter);					\
		if (error)										\
			return error;									\
		break;											\
	case SIOCGHWTSTAMP:										\
		get(dev, &config.tx_type, &config.rx_filter);						\
		break;											\
	default:											\
		return -EOPNOTSUPP;									\
	}												\
	return copy_to_user(ifr->ifr_data, &config, sizeof(config)) ? -EFAULT : 0;			\
}

#endif

#endif
