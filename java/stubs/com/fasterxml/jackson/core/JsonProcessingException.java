package com.fasterxml.jackson.core;

public class JsonProcessingException {
}
