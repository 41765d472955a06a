import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedList;
import java.util.Random;
import java.util.TreeMap;

/** A collection of Java's whose elements were made in any order, gone through again and again. */
final class Nodes {
    private static final class Item {
        final int number;
        final byte[] rest;

        Item(int number) {
            this.number = number;
            rest = new byte[1000];
            new Random(number).nextBytes(rest);
            java.util.Arrays.fill(rest, 400, 1000, (byte) 46);
        }
    }

    public static void main(String[] args) {
        int n = Integer.parseInt(args[1]);
        int rounds = Integer.parseInt(args[2]);
        Integer[] order = new Integer[n];
        for (int i = 0; i < n; i++) order[i] = i;
        java.util.Collections.shuffle(java.util.Arrays.asList(order), new Random(7));
        Collection<Item> items;
        switch (args[0]) {
            case "list" -> {
                Item[] all = new Item[n];
                for (int i = 0; i < n; i++) all[i] = new Item(i);
                items = new LinkedList<>();
                for (int i : order) items.add(all[i]);
            }
            case "hash" -> {
                HashMap<String, Item> map = new HashMap<>();
                for (int i : order) map.put("key " + i, new Item(i));
                items = map.values();
            }
            case "tree" -> {
                TreeMap<Integer, Item> map = new TreeMap<>();
                for (int i : order) map.put(i, new Item(i));
                items = map.values();
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ready");
        long expected = (long) n * (n - 1) / 2;
        for (int r = 0; r < rounds; r++) {
            long began = System.nanoTime();
            long sum = 0;
            for (Item item : items) {
                sum += item.number;
                if (item.rest[999] != 46) throw new AssertionError("item " + item.number);
            }
            if (sum != expected) throw new AssertionError("sum " + sum);
            System.out.printf("round %d: %.1f ms%n", r, (System.nanoTime() - began) / 1e6);
        }
    }
}
