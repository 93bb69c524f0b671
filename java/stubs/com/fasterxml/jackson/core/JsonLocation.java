package com.fasterxml.jackson.core;

public class JsonLocation {
  public long getCharOffset() {
    return 0;
  }
}
