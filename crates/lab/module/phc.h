/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Clocks of the test NICs. */
#ifndef LATPATH_LAB_PHC_H
#define LATPATH_LAB_PHC_H

#include <linux/types.h>

#define NICS 2

struct phc;

/* Creates the clocks that the parameters describe. */
int phcs_begin(void);
void phcs_end(void);

/* The clock of a NIC. */
struct phc *phc_of_nic(int nr);

/* PHC index: N of /dev/ptpN. */
int phc_index(const struct phc *phc);

/* The clock's reading at a time of CLOCK_MONOTONIC, which may be slightly in the future. */
u64 phc_show(struct phc *phc, u64 monotonic);

#endif
