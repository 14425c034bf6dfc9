/* arch/arm64/include/uapi/asm/ptrace.h, missing from other architectures' headers. */
struct user_pt_regs {
	unsigned long long regs[31];
	unsigned long long sp;
	unsigned long long pc;
	unsigned long long pstate;
};
