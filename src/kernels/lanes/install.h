/* install.h - puts all float ops of this folder into the table. Included after a folder's lanes.h. */
#ifndef NIB_KERNELS_LANES_INSTALL_H
#define NIB_KERNELS_LANES_INSTALL_H

#include "kernels/lanes/attend.h"
#include "kernels/lanes/column.h"
#include "kernels/lanes/elementwise.h"
#include "kernels/lanes/kv.h"
#include "kernels/lanes/kv_pack.h"
#include "kernels/lanes/recurrent.h"
#include "kernels/lanes/residual.h"
#include "kernels/lanes/rows.h"

static void lanes_install(kernel_table *t) {
    t->linear_rows = op_linear_rows;
    t->outliers = op_outliers;
    t->column = op_column;
    t->salient_of = op_salient;
    t->residual_add = op_residual;
    t->norm = op_norm;
    t->rope = op_rope;
    t->kv_store = op_kv_store;
    t->kv_pack = op_kv_pack;
    t->attend = op_attend;
    t->attend_part = op_attend_part;
    t->attend_join = op_attend_join;
    t->act = op_act;
    t->gate = op_gate;
    t->add = op_add;
    t->scale = op_scale;
    t->clamp = op_clamp;
    t->softcap = op_softcap;
    t->xielu = op_xielu;
    t->conv = op_conv;
    t->ssd = op_ssd;
    t->scan = op_scan;
    t->delta = op_delta;
    t->upper_bounds = op_upper_bounds;
}

#endif
