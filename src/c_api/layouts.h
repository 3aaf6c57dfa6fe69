#pragma once

#include <serinus/kv_layout.h>
#include <serinus_c.h>

struct serinus_layout {
  serinus::KvLayout layout;
};
