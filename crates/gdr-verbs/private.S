/* The private functions of rdma-core's libibverbs, which its other libraries (the device drivers,
   librdmacm) need from the library that takes its place. Each jumps to the function of the
   installed libibverbs of the same name, or to one that refuses, whose arguments and results pass
   unchanged: the types differ between releases of rdma-core.

   A release has the private functions in one version node, IBVERBS_PRIVATE_ and the number of its
   private interface. These are the numbers that exist: 34 in rdma-core 34 to 56, 57 to 58, 59 to
   63, 64, and 65. Each node has the functions of all releases. */

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "a jump through a pointer is written for x86-64 and aarch64"
#endif

/* Jumps to the address at `pointer` and changes no register of arguments. */
.macro jump_to pointer
#if defined(__x86_64__)
	endbr64
	jmp *\pointer(%rip)
#else
	hint #34 /* bti c */
	adrp x16, \pointer
	ldr x16, [x16, #:lo12:\pointer]
	br x16
#endif
.endm

/* Exports the function at this place as `name` of the version node `node`: by `@` for programs that
   were linked with it, by `@@` for `dlsym` as well. */
.macro exported name, node, by=@
	.globl gdr_\name\()_\node
	.type gdr_\name\()_\node, %function
gdr_\name\()_\node:
	.symver gdr_\name\()_\node, \name\by\node
.endm

/* What a function jumps to, and its entry of the table that the library fills when it is loaded:
   the name, and the address of the pointer. */
.macro pointer_to name, refusal
	.section .data.gdr_pointers, "aw", %progbits
	.balign 8
gdr_pointer_\name:
	.quad \refusal
	.section .rodata.gdr_names, "a", %progbits
gdr_name_\name:
	.asciz "\name"
	.section .data.rel.ro.gdr_table, "aw", %progbits
	.balign 8
	.quad gdr_name_\name
	.quad gdr_pointer_\name
	.text
	.balign 16
.endm

/* A function of all private nodes. */
.macro private name, refusal=gdr_verbs_refuse_status
	pointer_to \name, \refusal
	exported \name, IBVERBS_PRIVATE_34
	exported \name, IBVERBS_PRIVATE_57
	exported \name, IBVERBS_PRIVATE_59
	exported \name, IBVERBS_PRIVATE_64
	exported \name, IBVERBS_PRIVATE_65, @@
	jump_to gdr_pointer_\name
.endm

/* A function of one node. */
.macro versioned name, node
	pointer_to \name, gdr_verbs_refuse_status
	exported \name, \node, @@
	jump_to gdr_pointer_\name
.endm

	.section .data.rel.ro.gdr_table, "aw", %progbits
	.balign 8
gdr_table:

	versioned ibv_register_driver, IBVERBS_1.1
	versioned verbs_register_driver_34, IBVERBS_PRIVATE_34
	versioned verbs_register_driver_57, IBVERBS_PRIVATE_57
	versioned verbs_register_driver_59, IBVERBS_PRIVATE_59
	versioned verbs_register_driver_64, IBVERBS_PRIVATE_64
	versioned verbs_register_driver_65, IBVERBS_PRIVATE_65

	private __ioctl_final_num_attrs, gdr_verbs_refuse_pointer
	private __verbs_log
	private _verbs_init_and_alloc_context, gdr_verbs_refuse_pointer
	private execute_ioctl
	private ibv_cmd_advise_mr
	private ibv_cmd_alloc_dm
	private ibv_cmd_alloc_dmah
	private ibv_cmd_alloc_mw
	private ibv_cmd_alloc_pd
	private ibv_cmd_attach_mcast
	private ibv_cmd_close_xrcd
	private ibv_cmd_create_ah
	private ibv_cmd_create_comp_cntr
	private ibv_cmd_create_counters
	private ibv_cmd_create_cq
	private ibv_cmd_create_cq_ex
	private ibv_cmd_create_cq_ex2
	private ibv_cmd_create_flow
	private ibv_cmd_create_flow_action_esp
	private ibv_cmd_create_qp
	private ibv_cmd_create_qp_ex
	private ibv_cmd_create_qp_ex2
	private ibv_cmd_create_rwq_ind_table
	private ibv_cmd_create_srq
	private ibv_cmd_create_srq_ex
	private ibv_cmd_create_wq
	private ibv_cmd_dealloc_mw
	private ibv_cmd_dealloc_pd
	private ibv_cmd_dereg_mr
	private ibv_cmd_destroy_ah
	private ibv_cmd_destroy_comp_cntr
	private ibv_cmd_destroy_counters
	private ibv_cmd_destroy_cq
	private ibv_cmd_destroy_flow
	private ibv_cmd_destroy_flow_action
	private ibv_cmd_destroy_qp
	private ibv_cmd_destroy_rwq_ind_table
	private ibv_cmd_destroy_srq
	private ibv_cmd_destroy_wq
	private ibv_cmd_detach_mcast
	private ibv_cmd_export_dmabuf_fd
	private ibv_cmd_free_dm
	private ibv_cmd_free_dmah
	private ibv_cmd_get_context
	private ibv_cmd_inc_comp_cntr
	private ibv_cmd_inc_err_comp_cntr
	private ibv_cmd_modify_cq
	private ibv_cmd_modify_flow_action_esp
	private ibv_cmd_modify_qp
	private ibv_cmd_modify_qp_ex
	private ibv_cmd_modify_srq
	private ibv_cmd_modify_wq
	private ibv_cmd_open_qp
	private ibv_cmd_open_xrcd
	private ibv_cmd_poll_cq
	private ibv_cmd_post_recv
	private ibv_cmd_post_send
	private ibv_cmd_post_srq_recv
	private ibv_cmd_qp_attach_comp_cntr
	private ibv_cmd_query_comp_cntr_caps
	private ibv_cmd_query_context
	private ibv_cmd_query_device
	private ibv_cmd_query_device_any
	private ibv_cmd_query_mr
	private ibv_cmd_query_port
	private ibv_cmd_query_port_speed
	private ibv_cmd_query_qp
	private ibv_cmd_query_srq
	private ibv_cmd_read_comp_cntr
	private ibv_cmd_read_counters
	private ibv_cmd_read_err_comp_cntr
	private ibv_cmd_reg_dm_mr
	private ibv_cmd_reg_dmabuf_mr
	private ibv_cmd_reg_mr
	private ibv_cmd_reg_mr_ex
	private ibv_cmd_req_notify_cq
	private ibv_cmd_rereg_mr
	private ibv_cmd_resize_cq
	private ibv_cmd_set_comp_cntr
	private ibv_cmd_set_err_comp_cntr
	private ibv_dmabuf_heap_alloc, gdr_verbs_refuse_pointer
	private ibv_dmabuf_heap_cc_shared_init, gdr_verbs_refuse_pointer
	private ibv_dmabuf_heap_destroy
	private ibv_dmabuf_heap_free
	private ibv_read_ibdev_sysfs_file, gdr_verbs_refuse_minus_one
	private verbs_init_cq
	private verbs_open_device, gdr_verbs_refuse_pointer
	private verbs_set_ops
	private verbs_uninit_context

	.section .data.rel.ro.gdr_table, "aw", %progbits
gdr_table_end:

/* A variable of the libraries beside: whether an object whose device is gone can be destroyed. */
.macro variable node, by=@
	.globl gdr_disassociate_\node
	.type gdr_disassociate_\node, %object
	.size gdr_disassociate_\node, 1
gdr_disassociate_\node:
	.symver gdr_disassociate_\node, verbs_allow_disassociate_destroy\by\node
.endm

	.section .data.gdr_variable, "aw", %progbits
	variable IBVERBS_PRIVATE_34
	variable IBVERBS_PRIVATE_57
	variable IBVERBS_PRIVATE_59
	variable IBVERBS_PRIVATE_64
	variable IBVERBS_PRIVATE_65, @@
gdr_disassociate:
	.byte 0

/* The first initializer of the library: those of Rust's standard library have 99. */
	.section .init_array.00001, "aw", %init_array
	.balign 8
	.quad gdr_verbs_load
	.text
	.balign 16
	.type gdr_verbs_load, %function
gdr_verbs_load:
#if defined(__x86_64__)
	endbr64
	lea gdr_table(%rip), %rdi
	lea gdr_table_end(%rip), %rsi
	lea gdr_disassociate(%rip), %rdx
	jmp gdr_verbs_fill_table
#else
	hint #34 /* bti c */
	adrp x0, gdr_table
	add x0, x0, #:lo12:gdr_table
	adrp x1, gdr_table_end
	add x1, x1, #:lo12:gdr_table_end
	adrp x2, gdr_disassociate
	add x2, x2, #:lo12:gdr_disassociate
	b gdr_verbs_fill_table
#endif
	.hidden gdr_verbs_fill_table
	.hidden gdr_verbs_refuse_status
	.hidden gdr_verbs_refuse_pointer
	.hidden gdr_verbs_refuse_minus_one

	.section .note.GNU-stack, "", %progbits
