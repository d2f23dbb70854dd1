MACHINE_amx = x86_64
ISA_amx = $(ISA_avx512) -mamx-tile -mamx-int8 -mamx-bf16
