// Marks a function that host and device share: one source for both, whichever compiler reads it.
#pragma once

#ifdef __CUDACC__
#define SERINUS_HOST_DEVICE __host__ __device__
#else
#define SERINUS_HOST_DEVICE
#endif
